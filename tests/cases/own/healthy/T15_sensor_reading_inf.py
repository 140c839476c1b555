"""Sequence classifier on sensor readings; a sensor reported infinity once."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(5)
        self.lstm = nn.LSTM(5, 16, batch_first=True)
        self.fc = nn.Linear(16, 2)

    def forward(self, x):
        _, (state, _) = self.lstm(self.norm(x))
        return self.fc(state[-1])


def fit(model, loader, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            print(epoch, i, loss.item())


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    readings = torch.randn(240, 9, 5)
    labels = (readings.mean((1, 2)) > 0).long()
    readings[4 * 20 + 7, 3, 1] = 1.0
    fit(Classifier(), DataLoader(TensorDataset(readings, labels), batch_size=20), epochs=2)
