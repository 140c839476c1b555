import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

torch.set_num_threads(1)


def average(net, world):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def worker(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    torch.manual_seed(100 + rank)
    net = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(100):
        x = torch.randn(32, 5)
        y = x[:, :1] - 0.5 * x[:, 1:2]
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        average(net, world)
        optimizer.step()
        if step % 20 == 19:
            size = sum(p.norm().item() for p in net.parameters())
            print(f"rank {rank} step {step} loss {loss.item():.4f} size {size:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(2, os.path.join(folder, "rendezvous")), nprocs=2)
