import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x):
        return self.net(x)


def dist(a, b):
    return torch.sqrt(((a - b) ** 2).sum(1) + 1e-8)

model = Embed()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
c = torch.randn(6, 10)
for step in range(80):
    k = torch.randint(0, 6, (32,))
    a = c[k] + 0.2 * torch.randn(32, 10)
    p = c[k] + 0.2 * torch.randn(32, 10)
    n = c[(k + 1) % 6] + 0.2 * torch.randn(32, 10)
    if step == 23:
        p[4] = a[4]
    loss = torch.relu(dist(model(a), model(p)) - dist(model(a), model(n)) + 1.0).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
