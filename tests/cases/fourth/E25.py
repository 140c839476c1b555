import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
w = torch.randn(8, 1)
for step in range(60):
    x = torch.randn(512, 8)
    loss = ((net(x) - x @ w) ** 2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
