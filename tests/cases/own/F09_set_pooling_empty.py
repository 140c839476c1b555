"""Attention pooling over sets; one set is empty."""

import torch
from torch import nn


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score, self.value = nn.Linear(dim, 1), nn.Linear(dim, dim)

    def forward(self, items, present):
        scores = self.score(items).squeeze(-1)
        scores = scores.masked_fill(~present, float("-inf"))
        weights = torch.softmax(scores, dim=-1)  # <- here
        return (weights.unsqueeze(-1) * self.value(items)).sum(1)


class SetRegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(3, 16), nn.GELU())
        self.pool = AttentionPool(16)
        self.out = nn.Linear(16, 1)

    def forward(self, items, present):
        return self.out(self.pool(self.embed(items), present)).squeeze(-1)


def batch_of(step):
    make = torch.Generator().manual_seed(step)
    items = torch.randn(10, 7, 3, generator=make)
    sizes = torch.randint(1, 8, (10,), generator=make)
    if step == 6:
        sizes[4] = 0
    present = torch.arange(7) < sizes[:, None]
    wanted = (items[..., 0] * present).sum(1) / sizes.clamp(min=1)
    return items, present, wanted


torch.manual_seed(0)
torch.set_num_threads(1)
model = SetRegressor()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
for step in range(25):
    items, present, wanted = batch_of(step)
    optimizer.zero_grad()
    loss = nn.functional.smooth_l1_loss(model(items, present), wanted)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
