import torch
from torch import nn

torch.set_num_threads(1)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 40), nn.ReLU(), nn.Linear(40, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    torch.manual_seed(81)
    taste = torch.randn(9) / 3
    clicks = torch.randn(3000, 9)
    label = torch.where(clicks @ taste + 0.3 * torch.randn(3000) > 0, 1.0, -1.0)
    model = Ranker()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(240):
        pick = torch.randint(0, 3000, (100,))
        loss = criterion(model(clicks[pick]), label[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


main()
