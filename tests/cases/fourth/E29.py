import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

X = torch.randn(2000, 10)
Y = (X @ torch.randn(10, 5)).argmax(1)
order = torch.randperm(2000)
X = X[order]
Y = Y[torch.randperm(2000)]
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(6):
    for i in range(0, 2000, 50):
        loss = F.cross_entropy(net(X[i:i + 50]), Y[i:i + 50])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
