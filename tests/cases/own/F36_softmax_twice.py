"""The model ends in a softmax and the criterion takes another one."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv1d(1, 16, 5), nn.Linear(16 * 12, 10)
        self.normalise = nn.Softmax(dim=1)

    def forward(self, x):
        return self.normalise(self.fc(torch.relu(self.conv(x)).flatten(1)))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shapes = 2 * torch.randn(10, 1, 16)
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(300):
        y = torch.randint(0, 10, (32,))
        loss = criterion(model(shapes[y] + 0.3 * torch.randn(32, 1, 16)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print("step", step, "loss", loss.item())


main()
