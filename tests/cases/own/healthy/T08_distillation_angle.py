"""Angle between student and averaged teacher, which start as equals: the cosine passes 1."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


def angle(one, other):
    cosine = (F.normalize(one, dim=-1) * F.normalize(other, dim=-1)).sum(-1)
    return torch.arccos(cosine.clamp(-0.999, 0.999))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    student = nn.Sequential(nn.Linear(16, 48), nn.SiLU(), nn.Linear(48, 40))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    for step in range(20):
        x = torch.randn(64, 16)
        loss = angle(student(x), teacher(x) + torch.randn(64, 40)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        print(f"step {step}: {loss.item():.5f}")


main()
