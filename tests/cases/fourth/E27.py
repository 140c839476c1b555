import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

layers = []
for _ in range(8):
    layers += [nn.Linear(24, 24), nn.Sigmoid()]
net = nn.Sequential(nn.Linear(6, 24), *layers, nn.Linear(24, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
W = torch.randn(6, 3)
for step in range(250):
    x = torch.randn(64, 6)
    loss = F.cross_entropy(net(x), (x @ W).argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(step, loss.item())
