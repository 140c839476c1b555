import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
og = torch.optim.Adam(G.parameters(), lr=1e-3)
od = torch.optim.Adam(D.parameters(), lr=1e-3)
for it in range(300):
    real = torch.randn(64, 2) * 0.3 + torch.tensor([2.0, -1.0])
    fake = G(torch.randn(64, 4))
    od.zero_grad()
    ld = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    ld.backward()
    od.step()
    og.zero_grad()
    lg = F.softplus(-D(fake.detach())).mean()
    lg.backward()
    og.step()
    if it % 30 == 0:
        print(it, ld.item(), lg.item(), fake.mean(0).tolist())
