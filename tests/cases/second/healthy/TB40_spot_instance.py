"""Regression on a preemptible machine: the job is stopped once and picked up again."""

import os
import tempfile
import torch
from torch import nn
from torch.nn import functional as F

EPOCHS, STOP, PER_EPOCH = 18, 11, 16


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(1)


class Job:
    def __init__(self, folder):
        self.path = os.path.join(folder, "last.pt")
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.08, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.7)
        self.epoch = 0

    def save(self):
        parts = {"optimizer": self.optimizer.state_dict(), "scheduler": self.scheduler.state_dict()}
        torch.save({"model": self.model.state_dict(), "epoch": self.epoch, **parts}, self.path)

    def restore(self):
        state = torch.load(self.path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch = state["epoch"]

    def run(self, data, until):
        x, y = data
        while self.epoch < until:
            total = 0.0
            for rows in torch.randperm(len(x)).split(len(x) // PER_EPOCH):
                loss = F.mse_loss(self.model(x[rows]), y[rows])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item()
            lr = self.optimizer.param_groups[0]["lr"]
            print(f"epoch {self.epoch} loss {total / PER_EPOCH:.5f} lr {lr:.5f}")
            self.scheduler.step()
            self.epoch += 1
            self.save()


def make_data(count=1024):
    gen = torch.Generator().manual_seed(39)
    x = torch.randn(count, 6, generator=gen)
    return x, torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * x[:, 3]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = make_data()
    with tempfile.TemporaryDirectory() as folder:
        Job(folder).run(data, STOP)
        job = Job(folder)
        job.restore()
        job.run(data, EPOCHS)


if __name__ == "__main__":
    main()
