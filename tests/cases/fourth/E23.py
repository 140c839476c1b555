import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

X = torch.randn(600, 6)
X[437, 2] = float("nan")
Y = (X[:, 0] - X[:, 1] > 0).float()
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=20)
net = nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
for epoch in range(2):
    for i, (x, y) in enumerate(dl):
        loss = F.binary_cross_entropy_with_logits(net(x).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(epoch, i, loss.item())
