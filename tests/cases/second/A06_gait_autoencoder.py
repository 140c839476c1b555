"""Autoencoder of gait cycles: joint angles squeezed to a two-dimensional phase."""

import math

import torch
from torch import nn


class GaitCoder(nn.Module):
    def __init__(self, joints, code=2, width=48):
        super().__init__()
        self.squeeze = nn.Sequential(nn.Linear(joints, width), nn.Tanh(), nn.Linear(width, code))
        self.expand = nn.Sequential(nn.Linear(code, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, joints))

    def forward(self, angles):
        return self.expand(self.squeeze(angles))


def gait_cycles(samples, joints):
    phase = torch.linspace(0, 2 * math.pi, samples)[:, None]
    delay = torch.linspace(0, 3, joints)
    return torch.sin(phase + delay) + 0.4 * torch.cos(2 * phase - delay)


def main(steps=450):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    angles = gait_cycles(96, 8)
    model = GaitCoder(8)
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3, betas=(0.9, 0.99))
    window = []
    for step in range(steps):
        loss = nn.functional.mse_loss(model(angles), angles)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        window.append(loss.item())
        if len(window) == 50:
            print(f"step {step} best {min(window):.3e} worst {max(window):.3e}")
            window.clear()


if __name__ == "__main__":
    main()
