"""Frame classification with a learned offset per speaker, reproducible run."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class SpeakerOffset(nn.Module):
    def __init__(self, speakers, dim):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(speakers, dim))
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, frames, speaker):
        return frames * self.gain + self.table[speaker]


class FrameClassifier(nn.Module):
    def __init__(self, dim=20, speakers=12, classes=6):
        super().__init__()
        self.offset = SpeakerOffset(speakers, dim)
        self.body = nn.Sequential(nn.Linear(dim, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.head = nn.Linear(64, classes)

    def forward(self, frames, speaker):
        return self.head(self.body(self.offset(frames, speaker)))


def make_frames(count=1500, dim=20):
    gen = torch.Generator().manual_seed(14)
    centres = torch.randn(6, dim, generator=gen)
    voices = torch.randn(12, dim, generator=gen)
    phone = torch.randint(0, 6, (count,), generator=gen)
    speaker = torch.randint(0, 12, (count,), generator=gen)
    frames = centres[phone] + voices[speaker] + 0.6 * torch.randn(count, dim, generator=gen)
    return TensorDataset(frames, speaker, phone)


def main():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_frames(), batch_size=50, shuffle=True)
    model = FrameClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        for step, (frames, speaker, phone) in enumerate(loader):
            loss = F.cross_entropy(model(frames, speaker), phone)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
