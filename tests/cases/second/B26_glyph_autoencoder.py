"""Variational autoencoder on a stream of small grey images coming from several cameras."""

import torch
from torch import nn
from torch.nn import functional as F


class ImageStream:
    def __init__(self, size=10):
        self.gen = torch.Generator().manual_seed(33)
        grid = torch.linspace(-1, 1, size)
        self.rows, self.cols = grid[:, None], grid[None, :]

    def next(self, step, count=48):
        centre = 0.6 * (2 * torch.rand(count, 2, 1, 1, generator=self.gen) - 1)
        blob = torch.exp(-((self.rows - centre[:, 0]) ** 2 + (self.cols - centre[:, 1]) ** 2) * 4)
        image = blob + 0.02 * torch.randn(blob.shape, generator=self.gen)
        if step in (160, 161, 162, 163, 164):
            image = torch.rand(image.shape, generator=self.gen) * 3 - 1  # camera 4
        return image.flatten(1)


class VAE(nn.Module):
    def __init__(self, pixels=100, hidden=64, latent=4):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(pixels, hidden), nn.SiLU())
        self.mu, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, pixels))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-8, 4)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.dec(z), mu, logvar


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    stream = ImageStream()
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(230):
        x = stream.next(step)
        recon, mu, logvar = model(x)
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        loss = F.mse_loss(recon, x) + 1e-4 * kl
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        if step % 15 == 0 or 158 <= step < 168:
            print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
