import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(120):
    x = torch.rand(64, 6)
    y = x.sum(1) ** 0.7
    out = model(x)
    loss = F.mse_loss(F.softplus(out) ** 1.5, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
