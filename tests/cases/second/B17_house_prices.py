"""House prices from standardised features with a small MLP and momentum SGD."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


def load_houses(count=1200):
    gen = torch.Generator().manual_seed(2)
    area = 60 + 50 * torch.rand(count, generator=gen)
    rooms = torch.randint(1, 7, (count,), generator=gen).float()
    age = 80 * torch.rand(count, generator=gen)
    centre = torch.rand(count, generator=gen)
    price = 3200 * area + 9000 * rooms - 700 * age + 60000 * centre + 15000 * area.sub(85).sign() * centre
    x = torch.stack([area, rooms, age, centre], 1)
    x = (x - x.mean(0)) / x.std(0)
    return TensorDataset(x, price[:, None])


class PriceNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(x))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    errors = [F.mse_loss(model(x), y).item() for x, y in loader]
    model.train()
    return sum(errors) / len(errors)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load_houses()
    train, val = random_split(data, [1000, 200], generator=torch.Generator().manual_seed(0))
    train_loader, val_loader = DataLoader(train, 50, shuffle=True), DataLoader(val, 200)
    model = PriceNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(8):
        for step, (x, y) in enumerate(train_loader):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4g}")
        print(f"epoch {epoch} val {evaluate(model, val_loader):.4g}")


if __name__ == "__main__":
    main()
