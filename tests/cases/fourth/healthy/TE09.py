import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=5, gamma=0.1)
X = torch.randn(1024, 12)
Y = (X @ torch.randn(12, 4)).argmax(1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=32, shuffle=True)
for epoch in range(8):
    total = 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
    sched.step()
    print(epoch, total / len(loader), opt.param_groups[0]["lr"])
