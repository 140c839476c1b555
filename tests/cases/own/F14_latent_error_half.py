"""Denoiser under autocast; the squared error of unscaled latents is taken in half precision."""

import torch
from torch import nn


def denoising_loss(predicted, noise):
    error = predicted - noise.half()
    return (error * error).mean()  # <- here


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(10, 16)
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, noisy, t):
        return self.leave(torch.tanh(self.enter(noisy) + self.time(t)))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(25):
        clean, t = torch.randn(32, 8), torch.randint(0, 10, (32,))
        noise = torch.randn(32, 8)
        if step == 9:
            noise = noise * 400
        mixed = clean + noise * (t[:, None] / 10)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = denoising_loss(model(mixed, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", loss.item())


main()
