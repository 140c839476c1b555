import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
w = torch.randn(8)
for step in range(300):
    x = torch.randn(64, 8)
    y = (x @ w > 0).long()
    if 180 <= step < 190:
        x, y = x * 30, 1 - y
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
