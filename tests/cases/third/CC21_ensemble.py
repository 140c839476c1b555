"""Ensemble of small regressors trained side by side with torch.func."""
import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state


class Member(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 24), nn.Softplus(), nn.Linear(24, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def toy(n):
    x = torch.randn(n, 6)
    return x, x[:, 0] * x[:, 1] + torch.cos(2 * x[:, 2]) + 0.05 * torch.randn(n)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    members = [Member() for _ in range(4)]
    params, buffers = stack_module_state(members)
    skeleton = copy.deepcopy(members[0]).to("meta")

    def call(p, b, x):
        return functional_call(skeleton, (p, b), (x,))

    forward = torch.vmap(call, in_dims=(0, 0, None))
    optimizer = torch.optim.SGD(list(params.values()), lr=8.0, momentum=0.9)
    for step in range(250):
        x, y = toy(64)
        loss = (forward(params, buffers, x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5g}")


if __name__ == "__main__":
    main()
