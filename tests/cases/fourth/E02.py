import os
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
import torch.nn.functional as F


def run(rank, world, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=world)
    torch.manual_seed(100 + rank)
    emb = nn.Embedding(30, 16)
    head = nn.Linear(16, 5)
    params = list(emb.parameters()) + list(head.parameters())
    opt = torch.optim.SGD(params, lr=0.5)
    g = torch.Generator().manual_seed(7 + rank)
    for step in range(80):
        tok = torch.randint(0, 30, (32, 4), generator=g)
        target = tok[:, 0] % 5
        loss = F.cross_entropy(head(emb(tok)[:, 0]), target)
        opt.zero_grad()
        loss.backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if step % 20 == 19:
            s = sum(p.detach().abs().sum().item() for p in params)
            print(f"rank {rank} step {step} loss {loss.item():.4f} weights {s:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(run, args=(2, os.path.join(tmp, "init")), nprocs=2)
