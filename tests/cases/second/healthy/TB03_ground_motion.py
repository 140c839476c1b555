"""Ground motion maps (metres) from radar phase patches, dense encoder-decoder."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class RadarPatches(Dataset):
    def __init__(self, count=1024, size=12, modes=10):
        gen = torch.Generator().manual_seed(3)
        basis = F.avg_pool2d(torch.randn(modes, 1, size + 4, size + 4, generator=gen), 5, stride=1)
        basis = basis.flatten(1) / basis.flatten(1).std(1, keepdim=True)
        weight = torch.randn(count, modes, generator=gen) / modes**0.5
        motion = weight @ basis
        self.phase = motion + 0.1 * torch.randn(motion.shape, generator=gen)
        self.metres = 1e-4 * motion  # fractions of a millimetre

    def __len__(self):
        return len(self.phase)

    def __getitem__(self, i):
        return self.phase[i], self.metres[i]


class MotionNet(nn.Module):
    def __init__(self, pixels=144, width=48):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.decoder = nn.Linear(width, pixels)
        nn.init.normal_(self.decoder.weight, std=1e-6)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(RadarPatches(), batch_size=128, shuffle=True)
    model = MotionNet()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    for epoch in range(16):
        total = 0.0
        for phase, metres in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                pred = model(phase)
            loss = F.mse_loss(pred.float(), metres)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch} mse {total / len(loader):.4e}")


if __name__ == "__main__":
    main()
