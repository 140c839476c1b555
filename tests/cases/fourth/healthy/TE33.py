import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 16)
        self.scale = nn.Parameter(torch.ones(16))
        self.b = nn.Linear(16, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)) * self.scale)


net = Mixer()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(40):
    x = torch.randn(32, 6)
    loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
