"""Quantile regression by a criterion module; one target was never measured."""

import torch
from torch import nn


class PinballLoss(nn.Module):
    def __init__(self, quantiles):
        super().__init__()
        self.register_buffer("quantiles", torch.tensor(quantiles))

    def forward(self, predicted, target):
        error = target[:, None] - predicted
        return torch.maximum(self.quantiles * error, (self.quantiles - 1) * error).mean()


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.rand(600, 3) * 2 - 1
y = x.sum(1) + 0.3 * torch.randn(600)
y[14 * 20 + 11] = torch.nan
forecaster = nn.Sequential(nn.Linear(3, 24), nn.Softplus(), nn.Linear(24, 3))
criterion = PinballLoss([0.1, 0.5, 0.9])
optimizer = torch.optim.Rprop(forecaster.parameters(), lr=1e-3)
for step in range(30):
    chosen = slice(step * 20, (step + 1) * 20)
    loss = criterion(forecaster(x[chosen]), y[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "pinball", loss.item())
