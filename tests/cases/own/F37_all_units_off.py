"""Biases start so low that no unit of the second layer is ever on."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
nn.init.constant_(model[2].bias, -50.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(250):
    x = torch.randn(64, 6)
    target = x.abs().sum(1, keepdim=True)
    loss = nn.functional.smooth_l1_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print("step", step, "loss", loss.item())
