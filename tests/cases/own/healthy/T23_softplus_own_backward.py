"""Softplus with a hand-written derivative that overflows for large arguments."""

import torch
from torch import nn
from torch.nn import functional as F


class SoftplusFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.softplus(x)

    @staticmethod
    def backward(ctx, upstream):
        (x,) = ctx.saved_tensors
        grown = x.clamp(max=30).exp()
        return upstream * grown / (1 + grown)


class Softplus(nn.Module):
    def forward(self, x):
        return SoftplusFunction.apply(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.act, self.outer = nn.Linear(4, 24), Softplus(), nn.Linear(24, 1)

    def forward(self, x):
        return self.outer(self.act(self.inner(x)))


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(480, 4)
y = x.prod(1, keepdim=True)
x[10 * 24 + 5] = 1.0
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step, (a, b) in enumerate(zip(x.split(24), y.split(24), strict=True)):
    loss = F.smooth_l1_loss(net(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
