"""Batch normalisation after pooling to one pixel, and a last batch of a single image."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.bn(self.squeeze(self.conv(x))).flatten(1))


torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.randn(161, 3, 6, 6)
labels = images.mean((2, 3)).argmax(1)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step, (x, y) in enumerate(
    DataLoader(TensorDataset(images, labels), batch_size=16, drop_last=True)
):
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
