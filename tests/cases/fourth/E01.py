import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

torch.manual_seed(3)
net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
w = torch.randn(10)
for epoch in range(2):
    for it in range(60):
        x = torch.randn(32, 10)
        y = torch.tanh(x @ w)
        opt.zero_grad()
        loss = F.mse_loss(net(x).squeeze(1), y)
        loss.backward()
        opt.step()
    print("epoch", epoch, "loss", loss.item())
net.load_state_dict(net.state_dict())
saved = {"model": {k: v.clone() for k, v in net.state_dict().items()}, "optim": opt.state_dict()}

model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
optimizer.load_state_dict(saved["optim"])
model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1))
model.load_state_dict(saved["model"])
for it in range(200):
    x = torch.randn(32, 10)
    y = torch.tanh(x @ w)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x).squeeze(1), y)
    loss.backward()
    optimizer.step()
    if it % 20 == 0:
        print("resumed", it, loss.item())
