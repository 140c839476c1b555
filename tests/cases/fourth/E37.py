import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(100):
    p = torch.rand(64, 2) * 2 - 1
    if step == 30:
        p[0] = 0.0
    p.requires_grad_()
    r = (p ** 2).sum(1).sqrt()
    u = net(p).squeeze(1) * r
    g, = torch.autograd.grad(u.sum(), p, create_graph=True)
    loss = ((g ** 2).sum(1) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
