import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.2)
scaler = torch.amp.GradScaler("cpu")
W = torch.randn(16, 8)
for step in range(150):
    x = torch.randn(64, 16)
    y = (x @ W).argmax(1)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    if step % 10 == 0:
        print("grad norm", sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5)
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item())
