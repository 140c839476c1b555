"""Accumulated micro-batches under autocast: a Poisson rate is taken in half precision."""

import torch
from torch import nn


def poisson_loss(log_rate, counts):
    rate = torch.exp(log_rate.float())
    return (rate.float() - counts * log_rate.float()).mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 24), nn.Softsign(), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(20):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(3):
            x = torch.rand(16, 4)
            counts = torch.poisson(x.sum(1, keepdim=True))
            with torch.autocast("cpu", dtype=torch.float16):
                log_rate = model(x)
            if step == 6 and micro == 1:
                log_rate = log_rate + 0.5
            loss = poisson_loss(log_rate, counts) / 3
            loss.backward()
            total += loss.item()
        optimizer.step()
        print("step", step, "loss", total)


main()
