"""Share of invited people who attend an event, wide-and-deep model, logistic loss."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def load_events(count=2000):
    gen = torch.Generator().manual_seed(6)
    venue = torch.randint(0, 20, (count,), generator=gen)
    dense = torch.randn(count, 5, generator=gen)
    quality = torch.randn(20, generator=gen)
    score = quality[venue] + dense[:, 0] - 0.5 * dense[:, 1]
    share = torch.sigmoid(score + 0.2 * torch.randn(count, generator=gen))
    return TensorDataset(venue, dense, (100 * share).round())


class WideDeep(nn.Module):
    def __init__(self, venues=20, dim=8):
        super().__init__()
        self.wide = nn.Embedding(venues, 1)
        self.emb = nn.Embedding(venues, dim)
        self.deep = nn.Sequential(nn.Linear(dim + 5, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, venue, dense):
        deep = self.deep(torch.cat([self.emb(venue), dense], 1))
        return (self.wide(venue) + deep).squeeze(1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(load_events(), batch_size=64, shuffle=True)
    model = WideDeep()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
    for epoch in range(6):
        running = 0.0
        for venue, dense, percent in loader:
            loss = F.binary_cross_entropy_with_logits(model(venue, dense), percent)  # <- here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        scheduler.step()
        print(f"epoch {epoch} loss {running / len(loader):.4f} lr {scheduler.get_last_lr()[0]:g}")


if __name__ == "__main__":
    main()
