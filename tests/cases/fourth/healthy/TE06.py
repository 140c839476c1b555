import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

U, V = nn.Embedding(40, 8), nn.Embedding(50, 8)
nn.init.normal_(U.weight, std=0.3)
nn.init.normal_(V.weight, std=0.3)
R = torch.randn(40, 4) @ torch.randn(4, 50)
params = [*U.parameters(), *V.parameters()]
opt = torch.optim.Adam(params, lr=0.02)
for step in range(400):
    u = torch.randint(0, 40, (256,))
    v = torch.randint(0, 50, (256,))
    score = (U(u) * V(v)).sum(1, keepdim=True)
    loss = F.mse_loss(score.squeeze(1), R[u, v])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())
