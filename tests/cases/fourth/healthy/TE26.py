import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
for m in net:
    if isinstance(m, nn.Linear):
        nn.init.kaiming_normal_(m.weight)
        nn.init.zeros_(m.bias)
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
W = torch.randn(8, 4)
for step in range(200):
    x = torch.randn(64, 8)
    loss = F.cross_entropy(net(x), (x @ W).argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, loss.item())
