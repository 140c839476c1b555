import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 6), nn.Softmax(dim=1))
criterion = nn.CrossEntropyLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
c = 2 * torch.randn(6, 8)
for step in range(250):
    y = torch.randint(0, 6, (64,))
    x = c[y] + 0.3 * torch.randn(64, 8)
    opt.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(step, loss.item())
