"""Fit the rates of a predator and prey model by simulating the populations."""

import torch
from torch import nn


class Populations(nn.Module):
    def __init__(self, birth, hunt, death, growth):
        super().__init__()
        self.rates = nn.Parameter(torch.tensor([birth, hunt, death, growth]))

    def forward(self, start, steps, dt=0.1):
        birth, hunt, death, growth = self.rates
        prey, hunters = start.unbind(1)
        path = []
        for _ in range(steps):
            eaten = prey * hunters
            prey = prey + dt * (birth * prey - hunt * eaten)
            hunters = hunters + dt * (growth * eaten - death * hunters)
            path.append(torch.stack([prey, hunters], dim=1))
        return torch.stack(path, dim=1)


def field_counts(batch, steps, gen):
    start = 0.8 + 0.8 * torch.rand(batch, 2, generator=gen)
    with torch.no_grad():
        return start, Populations(1.0, 0.8, 0.9, 0.7)(start, steps)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(1)
    model = Populations(1.7, 0.5, 0.6, 1.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.8)
    for step in range(60):
        start, wanted = field_counts(8, 100, gen)
        loss = nn.functional.mse_loss(model(start, 100), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 4 == 0:
            print(f"step {step} error {loss.item():.4f} rates {[round(r, 3) for r in model.rates.tolist()]}")


if __name__ == "__main__":
    main()
