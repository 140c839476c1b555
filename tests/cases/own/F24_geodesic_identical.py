"""Geodesic distance of rotations by arc cosine; one pair is aligned exactly."""

import torch
from torch import nn


class Rotor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 16), nn.Linear(16, 1)])

    def forward(self, x):
        turn = self.layers[1](torch.tanh(self.layers[0](x))) * x[:, :1]
        return torch.cat([turn.cos(), turn.sin()], dim=1)


def geodesic(one, other):
    inner = (one * other).sum(1)
    return inner.clamp(-1, 1).acos().mean()  # <- here


torch.manual_seed(0)
torch.set_num_threads(1)
rotor = Rotor()
optimizer = torch.optim.SGD(rotor.parameters(), lr=0.02, nesterov=True, momentum=0.8)
for step in range(20):
    x = torch.randn(24, 2)
    if step == 8:
        x[5] = 0.0
    angle = 1.5 * x[:, 0] + 0.7 * x[:, 0] * x[:, 1]
    wanted = torch.stack([angle.cos(), angle.sin()], dim=1)
    loss = geodesic(rotor(x), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "angle", loss.item())
