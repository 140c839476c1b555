"""Data-parallel training by hand: two processes average their gradients after backward."""

import os
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, features=12, classes=4):
        super().__init__()
        self.fc1 = nn.Linear(features, 48)
        self.fc2 = nn.Linear(48, 48)
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def worker(rank, world, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    centres = torch.randn(4, 12, generator=torch.Generator().manual_seed(30))
    torch.manual_seed(1000 + rank)
    model = Net()  # <- here
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(120):
        label = torch.randint(0, 4, (32,))
        x = centres[label] + torch.randn(32, 12)
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world)
        optimizer.step()
        if step % 30 == 29:
            total = sum(p.detach().abs().sum().item() for p in model.parameters())
            print(f"rank {rank} step {step} loss {loss.item():.4f} weights {total:.4f}", flush=True)
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(2, os.path.join(folder, "store")), nprocs=2)


if __name__ == "__main__":
    main()
