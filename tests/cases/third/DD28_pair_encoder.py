import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
        self.projector = nn.Linear(32, 16)
        self.log_scale = nn.Parameter(torch.tensor(1.0))

    def embed(self, x):
        z = self.encoder(x)
        z = z.data / z.data.norm(dim=1, keepdim=True)
        return F.normalize(self.projector(z), dim=1)

    def forward(self, a, b):
        logits = self.embed(a) @ self.embed(b).T * self.log_scale.exp()
        label = torch.arange(len(a))
        return (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label)) / 2


def main():
    torch.manual_seed(121)
    model = Pairs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    rotate = torch.linalg.qr(torch.randn(16, 16))[0]
    for step in range(300):
        hidden = torch.randn(64, 16)
        first = hidden + 0.2 * torch.randn(64, 16)
        second = (hidden @ rotate).abs() + 0.2 * torch.randn(64, 16)
        loss = model(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")


main()
