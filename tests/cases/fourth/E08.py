import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
baseline = nn.Linear(4, 1)
opt = torch.optim.Adam(list(policy.parameters()) + list(baseline.parameters()), lr=5e-3)
M = torch.randn(4, 3)
for it in range(200):
    s = torch.randn(64, 4)
    with torch.no_grad():
        dist = torch.distributions.Categorical(logits=policy(s))
    a = dist.sample()
    r = ((s @ M).argmax(1) == a).float()
    v = baseline(s).squeeze(1)
    loss = -(dist.log_prob(a) * (r - v.detach())).mean() + F.mse_loss(v, r)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 20 == 0:
        print(it, "reward", r.mean().item(), "loss", loss.item())
