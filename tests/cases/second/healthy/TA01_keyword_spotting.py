"""Keyword spotting on log-mel frames: a small 1-D CNN trained with momentum SGD."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SpokenWords(Dataset):
    def __init__(self, count, words, seed):
        gen = torch.Generator().manual_seed(seed)
        templates = torch.randn(words, 20, 32, generator=torch.Generator().manual_seed(7))
        self.labels = torch.randint(0, words, (count,), generator=gen)
        noise = torch.randn(count, 20, 32, generator=gen)
        self.mels = 0.6 * templates[self.labels] + 0.8 * noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.mels[index], self.labels[index]


class KeywordNet(nn.Module):
    def __init__(self, words, width=48):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(20, width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(4 * width, 64), nn.LeakyReLU(0.1), nn.Linear(64, words))

    def forward(self, mels):
        return self.classifier(self.features(mels))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = sum((model(mels).argmax(1) == labels).sum().item() for mels, labels in loader)
    model.train()
    return hits / len(loader.dataset)


def train():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = 8
    train_loader = DataLoader(SpokenWords(1024, words, 1), batch_size=32, shuffle=True)
    valid_loader = DataLoader(SpokenWords(256, words, 2), batch_size=64)
    model = KeywordNet(words)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        for step, (mels, labels) in enumerate(train_loader):
            loss = criterion(model(mels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 8 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        print(f"epoch {epoch} valid accuracy {accuracy(model, valid_loader):.3f}")


if __name__ == "__main__":
    train()
