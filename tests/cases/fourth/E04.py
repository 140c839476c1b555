import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=0.0), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))

    def forward(self, x):
        return self.body(x)


protos = torch.randn(3, 1, 8, 8) * 4 + 20
def batch(n):
    y = torch.randint(0, 3, (n,))
    return protos[y] + torch.randn(n, 1, 8, 8), y

model = Conv()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(8):
    model.train()
    for _ in range(25):
        x, y = batch(32)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        x, y = batch(256)
        logits = model(x)
        val = F.cross_entropy(logits, y).item()
    print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f} acc {(logits.argmax(1) == y).float().mean():.3f}")
