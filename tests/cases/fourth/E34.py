import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
W = torch.randn(6, 3)
for step in range(80):
    x = torch.randn(16, 6)
    x[:, 1] *= 4
    y = (x @ W * 60).softmax(1)
    q = (net(x) * 20).softmax(1)
    loss = (y * (torch.log(y) - torch.log(q))).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
