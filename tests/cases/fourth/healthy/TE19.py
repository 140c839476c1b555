import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


m = Counts()
opt = torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9)
for step in range(120):
    x = torch.randn(64, 4)
    if step >= 20:
        x = x * 1
    rate = torch.exp(m(x).clamp(max=8))
    y = torch.poisson(torch.exp(0.3 * x[:, 0].clamp(-3, 3)))
    loss = (rate - y * torch.log(rate + 1e-8)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
