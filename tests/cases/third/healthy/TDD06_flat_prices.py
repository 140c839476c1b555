import torch
from torch import nn

torch.set_num_threads(1)


class Trainer:
    def __init__(self, net, lr):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        self.criterion = nn.MSELoss()

    def fit(self, x, y, epochs, batch=50):
        step = 0
        for epoch in range(epochs):
            order = torch.randperm(len(x))
            for part in order.split(batch):
                loss = self.criterion(self.net(x[part]), y[part])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if step % 10 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
                step += 1


def flats(n=800):
    area = 25 + 120 * torch.rand(n, 1)
    rooms = (area / 28).ceil()
    age = 60 * torch.rand(n, 1)
    price = 4200 * area + 15000 * rooms - 900 * age + 12000 * torch.randn(n, 1)
    x = torch.cat([area, rooms, age], 1)
    x = (x - x.mean(0)) / x.std(0)
    return x, (price - price.mean()) / price.std()


def main():
    torch.manual_seed(14)
    x, y = flats()
    net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    Trainer(net, lr=0.01).fit(x, y, epochs=10)


if __name__ == "__main__":
    main()
