"""Recurrent regression in which gradients of all steps add up."""

import torch
from torch import nn


class Echo(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(2, 24), nn.Linear(24, 1)

    def forward(self, sequence):
        state = torch.zeros(sequence.shape[1], 24)
        for x in sequence:
            state = self.cell(x, state)
        return self.out(state).squeeze(1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Echo()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(200):
        sequence = torch.randn(5, 32, 2)
        loss = (model(sequence) - sequence[:, :, 0].sum(0)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print("step", step, "loss", loss.item())


main()
