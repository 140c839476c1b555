import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


class PatchNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.body = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.out = nn.Linear(16 * 9, classes)

    def forward(self, x):
        x = F.gelu(self.stem(x))
        x = F.gelu(self.body(x))
        return self.out(x.flatten(1))


def train(steps=120):
    torch.manual_seed(21)
    shapes = torch.randn(5, 1, 12, 12)
    net = PatchNet()
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
    for it in range(steps):
        label = torch.randint(0, 5, (48,))
        image = shapes[label] + 1.5 * torch.randn(48, 1, 12, 12)
        sgd.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = net(image)
        loss = F.cross_entropy(logits.float(), label)
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()
        if it % 10 == 0:
            print(f"it {it} loss {loss.item():.4f}")


train()
