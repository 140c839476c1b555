import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

def charbonnier(d):
    return torch.where(d.abs() > 0.5, torch.sqrt((d.abs() - 0.5).clamp(min=1e-6)) + 0.125, 0.5 * d ** 2)

net = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 1, 5, padding=2))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
t = torch.linspace(0, 6, 40)
for step in range(100):
    clean = torch.sin(t + 6 * torch.rand(16, 1))[:, None]
    noisy = clean + 0.2 * torch.randn_like(clean)
    loss = charbonnier(net(noisy) - clean).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
