import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
w = torch.randn(6)
for step in range(100):
    x = torch.randn(32, 6)
    y = (x @ w > 0).float()
    loss = F.binary_cross_entropy(net(x).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
