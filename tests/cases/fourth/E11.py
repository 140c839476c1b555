import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(5, 16)
        self.g = nn.Linear(16, 2)

    def forward(self, x, src, dst):
        h = torch.relu(self.f(x))
        agg = torch.zeros_like(h).index_add(0, dst, h[src])
        deg = torch.zeros(len(x)).index_add(0, dst, torch.ones(len(dst)))
        return self.g(agg / deg[:, None])


net = Pool()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for it in range(60):
    x = torch.randn(20, 5)
    src = torch.arange(20)
    dst = (src + 1 + it % 5) % 20
    if it == 17:
        src, dst = src[:-1], dst[:-1]
    y = (x[:, 0].roll(1 + it % 5) > 0).long()
    loss = F.cross_entropy(net(x, src, dst), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, loss.item())
