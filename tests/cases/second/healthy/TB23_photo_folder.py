"""Image classification from a folder: names are listed, labels come from a text file."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def render(kind, gen):
    img = 0.3 * torch.randn(1, 16, 16, generator=gen)
    r, c = torch.randint(2, 10, (2,), generator=gen).tolist()
    if kind == 0:
        img[:, r, :] += 2
    elif kind == 1:
        img[:, :, c] += 2
    elif kind == 2:
        img[:, r : r + 5, c : c + 5] += 1.5
    else:
        img[:, range(16), range(16)] += 2
    return img


def make_folder(count=800):
    gen = torch.Generator().manual_seed(8)
    kinds = torch.randint(0, 4, (count,), generator=gen).tolist()
    files = {f"img_{i}.png": render(k, gen) for i, k in enumerate(kinds)}
    label_lines = [str(k) for k in kinds]
    return files, label_lines


class PhotoFolder(Dataset):
    def __init__(self, files, label_lines):
        self.files = files
        self.names = sorted(files, key=lambda name: int(name[4:-4]))
        self.labels = [int(line) for line in label_lines]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        return self.files[self.names[i]], self.labels[i]


class SmallCNN(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(PhotoFolder(*make_folder()), batch_size=40, shuffle=True)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for epoch in range(8):
        hits = seen = total = 0
        for img, label in loader:
            logits = model(img)
            loss = F.cross_entropy(logits, label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(label)
            hits += (logits.argmax(1) == label).sum().item()
            seen += len(label)
        print(f"epoch {epoch} loss {total / seen:.4f} accuracy {hits / seen:.3f}")


if __name__ == "__main__":
    main()
