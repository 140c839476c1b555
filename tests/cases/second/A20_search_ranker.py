"""Search ranking with a smooth version of NDCG."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Ranker(nn.Module):
    def __init__(self, features, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, documents):
        return self.net(documents).squeeze(-1)


def discounted(gain, rank):
    return (gain / torch.log2(rank + 1)).sum(1)


def smooth_ndcg(score, grade, temperature=0.5):
    gain = 2.0**grade - 1
    ahead = torch.sigmoid((score.unsqueeze(1) - score.unsqueeze(2)) / temperature)
    rank = 0.5 + ahead.sum(2)
    best = torch.arange(1, grade.shape[1] + 1).float().expand_as(grade)
    ideal = discounted(gain.sort(1, descending=True).values, best)
    return discounted(gain, rank) / ideal  # <- here


def make_queries(count, documents=24, seed=12):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, documents, 8, generator=gen)
    quality = x[..., 0] - 0.7 * x[..., 1] + 0.3 * torch.randn(count, documents, generator=gen)
    return TensorDataset(x, torch.floor(quality).clamp(0, 4))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_queries(640), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))
    model = Ranker(8)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, momentum=0.5)
    for epoch in range(3):
        total = 0.0
        for documents, grade in loader:
            loss = 1 - smooth_ndcg(model(documents), grade).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} 1-ndcg {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
