"""Keyword tagging on short PCM clips: frame filters, energies, a small classifier."""

import math
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, count=512, length=128):
        gen = torch.Generator().manual_seed(7)
        self.label = torch.randint(0, 4, (count,), generator=gen)
        t = torch.arange(length) / length
        freq = 4.0 * (1 + self.label)[:, None]
        phase = torch.rand(count, 1, generator=gen)
        wave = torch.sin(2 * math.pi * (freq * t + phase))
        wave = 0.8 * wave + 0.1 * torch.randn(count, length, generator=gen)
        self.pcm = (wave * 32767).clamp(-32768, 32767).to(torch.int16)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.pcm[i].float() / 32768, self.label[i]


class Tagger(nn.Module):
    def __init__(self, width=16, classes=4):
        super().__init__()
        self.filters = nn.Linear(32, width)
        self.hidden = nn.Linear(width, width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        frames = x.unfold(-1, 32, 16)
        energy = self.filters(frames).square()
        h = F.relu(self.hidden(energy))
        return self.fc(h.mean(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Clips(), batch_size=32, shuffle=True, drop_last=True)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    step = 0
    for epoch in range(8):
        for pcm, label in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(pcm)
                loss = F.cross_entropy(logits.float(), label)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}")
            step += 1


if __name__ == "__main__":
    main()
