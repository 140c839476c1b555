import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=3.0, momentum=0.9)
w = torch.randn(6, 1)
for step in range(60):
    x = torch.randn(64, 6)
    loss = F.mse_loss(net(x), x @ w)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
