import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

rnn = nn.RNN(4, 32, nonlinearity="relu", batch_first=True)
head = nn.Linear(32, 1)
with torch.no_grad():
    rnn.weight_hh_l0.copy_(torch.eye(32) * 1.5)
params = [*rnn.parameters(), *head.parameters()]
opt = torch.optim.SGD(params, lr=1e-3)
for step in range(60):
    x = torch.randn(16, 60, 4)
    loss = F.mse_loss(head(rnn(x)[0][:, -1]), x[:, -1, :1])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
