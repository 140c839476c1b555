"""Mean over neighbours in a small graph net; one graph has a node without a neighbour."""

import torch
from torch import nn


class MeanConv(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.own, self.other = nn.Linear(inside, outside), nn.Linear(inside, outside)

    def forward(self, h, source, target):
        summed = torch.zeros_like(h).index_add(0, target, h[source])
        degree = torch.zeros(len(h)).index_add(0, target, torch.ones(len(target)))
        mean = summed / degree[:, None]  # <- here
        return torch.relu(self.own(h) + self.other(mean))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = MeanConv(4, 16), MeanConv(16, 16)
        self.readout = nn.Linear(16, 1)

    def forward(self, h, source, target):
        h = self.conv2(self.conv1(h, source, target), source, target)
        return self.readout(h.mean(0))


def ring(size):
    source = torch.arange(size)
    target = (source + 1) % size
    return torch.cat([source, target]), torch.cat([target, source])


torch.manual_seed(0)
torch.set_num_threads(1)
net = GraphNet()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(30):
    nodes = torch.randn(8, 4)
    source, target = ring(7 if step == 9 else 8)
    wanted = nodes.sum(1).mean().reshape(1)
    loss = nn.functional.huber_loss(net(nodes, source, target), wanted)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"{step:3d} {loss:.5f}")
