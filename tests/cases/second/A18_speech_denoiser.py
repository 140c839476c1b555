"""Speech denoising with a spectral loss on clips of different duration."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, count, length=128, seed=5):
        gen = torch.Generator().manual_seed(seed)
        time = torch.arange(length) / 16
        pitch = 1 + 2 * torch.rand(count, 1, generator=gen)
        self.clean = torch.sin(6.28 * pitch * time) + 0.5 * torch.sin(12.56 * pitch * time)
        self.noisy = self.clean + 0.5 * torch.randn(count, length, generator=gen)
        self.valid = torch.ones(count, length)
        for number in range(170, count, 40):
            self.valid[number, 60:] = 0

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, index):
        keep = self.valid[index]
        return self.noisy[index] * keep, self.clean[index] * keep, keep


class Denoiser(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, width, 9, padding=4), nn.GELU(), nn.Conv1d(width, width, 9, padding=4), nn.GELU(), nn.Conv1d(width, 1, 9, padding=4)
        )

    def forward(self, wave, keep):
        return self.net(wave.unsqueeze(1)).squeeze(1) * keep


def magnitude(wave, size=32):
    spectrum = torch.stft(wave, size, hop_length=16, window=torch.hann_window(size), center=False, return_complex=True)
    power = spectrum.real.pow(2) + spectrum.imag.pow(2)
    return power.sqrt()  # <- here


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Clips(320), batch_size=8)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for step, (noisy, clean, keep) in enumerate(loader):
            wave = model(noisy, keep)
            loss = nn.functional.l1_loss(magnitude(wave), magnitude(clean)) + nn.functional.l1_loss(wave, clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 8 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
