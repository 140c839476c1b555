import torch
from torch import nn

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(2, 16, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.features(x))


def main():
    torch.manual_seed(61)
    net = Net(classes=20)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    net.head = nn.Linear(64, 4)
    waves = torch.randn(4, 2, 32)
    for step in range(200):
        label = torch.randint(0, 4, (50,))
        x = waves[label] + 0.5 * torch.randn(50, 2, 32)
        loss = nn.functional.cross_entropy(net(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


main()
