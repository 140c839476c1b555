"""A decay meant for epochs is applied to every batch: the rate is gone after a few dozen."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.schedule = ExponentialLR(self.optimizer, gamma=0.6)

    def epoch(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
        return loss.item()


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(1280, 12)
y = (x @ torch.randn(12, 5)).argmax(1)
model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 5))
trainer = Trainer(model)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
for epoch in range(8):
    print("epoch", epoch, "loss", trainer.epoch(loader))
