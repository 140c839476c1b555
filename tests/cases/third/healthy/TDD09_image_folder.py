import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


def export(folder, n=1200):
    rng = np.random.default_rng(4)
    kinds = rng.integers(0, 4, n)
    prototypes = rng.normal(size=(4, 1, 8, 8))
    for i, kind in enumerate(kinds):
        image = prototypes[kind] + 0.6 * rng.normal(size=(1, 8, 8))
        np.save(folder / f"scan_{i}.npy", image.astype(np.float32))
    (folder / "labels.csv").write_text("\n".join(f"scan_{i},{k}" for i, k in enumerate(kinds)))


def read(folder):
    files = sorted(folder.glob("scan_*.npy"), key=lambda f: int(f.stem.split("_")[1]))
    images = torch.from_numpy(np.stack([np.load(f) for f in files]))
    rows = [line.split(",") for line in (folder / "labels.csv").read_text().splitlines()]
    labels = torch.tensor([int(kind) for _, kind in rows])
    return images, labels


class SmallConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.c2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(64, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.fc(x.flatten(1))


def main():
    torch.manual_seed(4)
    with tempfile.TemporaryDirectory() as name:
        export(Path(name))
        images, labels = read(Path(name))
    net = SmallConv()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    step = 0
    for epoch in range(8):
        for part in torch.randperm(len(images)).split(40):
            loss = F.cross_entropy(net(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
