import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(6, 24, batch_first=True)
        self.out = nn.Linear(24, 4)

    def forward(self, x):
        h, _ = self.gru(x)
        return self.out(h[:, -1])


model = Encoder()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
centers = torch.randn(4, 6)
for step in range(200):
    y = torch.randint(0, 4, (32,))
    x = centers[y][:, None, :] + 0.5 * torch.randn(32, 7, 6)
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, loss.item())
