import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(torch.bfloat16)
with torch.no_grad():
    for p in model.parameters():
        p.mul_(1.0)
opt = torch.optim.SGD(model.parameters(), lr=2e-4, momentum=0.0)
x = torch.randn(256, 8).bfloat16()
y = 3 * x[:, :1] + 10
for step in range(1500):
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, loss.item())
