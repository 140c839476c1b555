import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
scale = torch.tensor([900.0, 1500.0, 300.0, 2000.0, 40.0])
for step in range(100):
    x = torch.rand(32, 5) * scale
    y = (x / scale).sum(1, keepdim=True)
    x = x / scale
    loss = F.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
