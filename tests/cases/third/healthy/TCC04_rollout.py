"""Learn the vector field of a damped oscillator network by back-propagating through a long Euler rollout."""
import torch
from torch import nn


class VectorField(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.inner = nn.Linear(dim, hidden)
        self.outer = nn.Linear(hidden, dim, bias=False)

    def forward(self, z):
        return self.outer(nn.functional.leaky_relu(self.inner(z), 0.3))


def rollout(field, z, steps, dt):
    path = []
    for _ in range(steps):
        z = z + dt * field(z)
        path.append(z)
    return torch.stack(path, 1)


def true_paths(matrix, z, steps, dt):
    path = []
    for _ in range(steps):
        z = z + dt * z @ matrix.T
        path.append(z)
    return torch.stack(path, 1)


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    dim, horizon, dt = 6, 90, 0.1
    skew = torch.randn(dim, dim)
    matrix = 0.5 * (skew - skew.T) - 0.3 * torch.eye(dim)
    field = VectorField(dim, 48)
    optimizer = torch.optim.SGD(field.parameters(), lr=0.4)
    for step in range(110):
        start = torch.randn(16, dim)
        target = true_paths(matrix, start, horizon, dt)
        loss = (rollout(field, start, horizon, dt) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(field.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} rollout error {loss.item():.4g}")


if __name__ == "__main__":
    main()
