import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.2)
scaler = torch.amp.GradScaler("cpu")
W = torch.randn(8, 4)
for step in range(150):
    x = torch.randn(64, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), (x @ W).argmax(1))
    opt.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(opt)
    scaler.update()
    if step % 15 == 0:
        print(step, loss.item())
