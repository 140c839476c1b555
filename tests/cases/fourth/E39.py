import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
warmup = 500
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s // warmup))
w = torch.randn(6, 1)
for step in range(300):
    x = torch.randn(64, 6)
    loss = F.mse_loss(net(x), x @ w)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(step, loss.item())
