"""The squared residual of a column and a row is a square: only the mean is learnt."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def squared_error(predicted, target):
    return (predicted - target).square().mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(6400, 6)
    y = x @ torch.tensor([2.0, -1.0, 0.5, 1.5, -2.0, 1.0])
    model = nn.Sequential(nn.Linear(6, 40), nn.GELU(), nn.Linear(40, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    for step, (a, b) in enumerate(loader):
        loss = squared_error(model(a).squeeze(1), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print("step", step, "loss", loss.item())


main()
