"""System identification: fit a state-space model of a motor by simulating it over a whole recording."""

import torch
from torch import nn


class StateSpace(nn.Module):
    def __init__(self, states, inputs, outputs):
        super().__init__()
        self.move = nn.Parameter(0.9 * torch.eye(states) + 0.05 * torch.randn(states, states))
        self.drive = nn.Parameter(0.3 * torch.randn(states, inputs))
        self.sense = nn.Parameter(0.3 * torch.randn(outputs, states))

    def forward(self, commands):
        state = commands.new_zeros(commands.shape[0], self.move.shape[0])
        seen = []
        for command in commands.unbind(1):
            state = state @ self.move.T + command @ self.drive.T
            seen.append(state @ self.sense.T)
        return torch.stack(seen, dim=1)


class Recorder:
    def __init__(self, length, seed=11):
        self.gen = torch.Generator().manual_seed(seed)
        self.length = length
        self.true = StateSpace(4, 2, 2)
        with torch.no_grad():
            self.true.move.mul_(0.95 / torch.linalg.eigvals(self.true.move).abs().max())

    @torch.no_grad()
    def record(self, count):
        commands = torch.randn(count, self.length, 2, generator=self.gen)
        return commands, self.true(commands)


def identify(steps=120):
    torch.manual_seed(5)
    torch.set_num_threads(1)
    recorder = Recorder(length=60)
    model = StateSpace(6, 2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(steps):
        commands, wanted = recorder.record(16)
        loss = nn.functional.mse_loss(model(commands), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 0:
            print(f"step {step} error {loss.item():.4g}")


if __name__ == "__main__":
    identify()
