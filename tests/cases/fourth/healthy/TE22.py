import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, 4))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
p = torch.randn(4, 2, 16)
for step in range(60):
    k = torch.randint(0, 4, (8,))
    x = p[k] + 0.2 * torch.randn(8, 2, 16)
    label = k
    loss = F.cross_entropy(net(x), label)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
