import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(64, 64), nn.Linear(64, 64)
        self.v = nn.Linear(64, 64)
        self.out = nn.Linear(64, 4)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        s = q @ k.transpose(1, 2)
        s = s / 8
        return self.out((s.softmax(-1) @ self.v(x)).mean(1))


model = Half()
with torch.no_grad():
    model.q.weight.mul_(45)
    model.k.weight.mul_(45)
opt = torch.optim.SGD(model.parameters(), lr=0.02)
protos = torch.randn(4, 64)
for step in range(80):
    y = torch.randint(0, 4, (16,))
    x = protos[y][:, None, :] * 3 + torch.randn(16, 6, 64)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
