"""Mean distance of key points; points that are not visible are masked to zero on both sides."""

import torch
from torch import nn


class PoseLoss(nn.Module):
    def forward(self, predicted, wanted, visible):
        offset = (predicted - wanted) * visible[..., None]
        distance = torch.sqrt((offset * offset).sum(-1) + 1e-8)
        return distance.sum() / visible.sum()


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv1d(2, 16, 3, padding=1), nn.Mish(), nn.Flatten())
        self.points = nn.Linear(16 * 6, 10)

    def forward(self, x):
        return self.points(self.trunk(x)).unflatten(1, (5, 2))


torch.manual_seed(0)
torch.set_num_threads(1)
net, criterion = PoseNet(), PoseLoss()
optimizer = torch.optim.RAdam(net.parameters(), lr=3e-3)
for step in range(24):
    x = torch.randn(16, 2, 6)
    wanted = x[:, :, :5].transpose(1, 2)
    visible = torch.ones(16, 5)
    if step == 9:
        visible[3, 2] = 0
    loss = criterion(net(x), wanted, visible)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
