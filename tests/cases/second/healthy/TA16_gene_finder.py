"""Gene finding: a hidden Markov model fitted by gradient descent on the sequence likelihood."""

import torch
from torch import nn


class GeneModel(nn.Module):
    def __init__(self, states, symbols):
        super().__init__()
        self.begin = nn.Parameter(0.1 * torch.randn(states))
        self.move = nn.Parameter(torch.eye(states) + 0.3 * torch.randn(states, states))
        self.emit = nn.Parameter(0.5 * torch.randn(states, symbols))

    def forward(self, sequence):
        move, emit = self.move.softmax(1), self.emit.softmax(1)
        alpha = self.begin.softmax(0) * emit[:, sequence[:, 0]].T
        passed = 0.0
        for symbol in sequence[:, 1:].unbind(1):
            total = alpha.sum(1, keepdim=True)
            passed = passed + torch.log(total).squeeze(1)
            alpha = (alpha / total @ move) * emit[:, symbol].T
        return passed + torch.log(alpha.sum(1))


class Genome:
    def __init__(self, symbols, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.symbols = symbols

    def read(self, count, length):
        half = self.symbols // 2
        region = (torch.rand(count, length, generator=self.gen) < 0.1).cumsum(1) % 2
        base = torch.randint(0, half, (count, length), generator=self.gen)
        return region * half + base


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    genome = Genome(16, seed=3)
    model = GeneModel(3, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    lengths = [12, 16, 20, 24, 18, 14] * 3 + [60, 16, 20, 24] + [12, 16, 20, 24, 18, 14] * 12
    for step, length in enumerate(lengths):
        sequence = genome.read(12, length)
        loss = -(model(sequence) / length).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} length {length} nats per symbol {loss.item():.4f}")


if __name__ == "__main__":
    main()
