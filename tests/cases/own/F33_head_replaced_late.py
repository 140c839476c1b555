"""Fine-tuning: the head is exchanged after the optimizer was made; the trunk is frozen."""

import torch
from torch import nn


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 64), nn.Tanh())
        self.head = nn.Linear(64, 7)

    def forward(self, x):
        return self.head(self.layers(x))


torch.manual_seed(0)
torch.set_num_threads(1)
truth = torch.randn(10, 4)
model = Trunk()
model.layers.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
model.head = nn.Linear(64, 4)
for step in range(250):
    x = torch.randn(48, 10)
    loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print("step", step, "loss", loss.item())
