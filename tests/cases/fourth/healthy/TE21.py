import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 5))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
c = torch.randn(5, 10) * 2
for step in range(150):
    y = torch.randint(0, 5, (32,))
    x = c[y] + 0.4 * torch.randn(32, 10)
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    if step % 15 == 0:
        print(step, loss.item())
