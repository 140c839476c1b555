import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

enc = nn.Linear(12, 16)
mu, lv = nn.Linear(16, 3), nn.Linear(16, 3)
dec = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 12))
params = [p for m in (enc, mu, lv, dec) for p in m.parameters()]
opt = torch.optim.Adam(params, lr=5e-3)
basis = torch.randn(3, 12)
for it in range(120):
    x = torch.randn(64, 3) @ basis
    h = torch.relu(enc(x))
    m, s = mu(h), F.softplus(lv(h)) + 1e-4
    z = m + s * torch.randn_like(m)
    rec = F.mse_loss(dec(z), x)
    kl = (-torch.log(s) + 0.5 * (s ** 2 + m ** 2) - 0.5).mean()
    loss = rec + 0.05 * kl
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(it, rec.item(), kl.item())
