import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 20)

    def forward(self, t):
        h = self.emb(t)
        s = self.q(h) @ self.k(h).transpose(1, 2) / 4
        n = t.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        s = s.masked_fill(mask, float("-inf"))
        return self.out(s.softmax(-1) @ self.v(h))


model = Attn()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(60):
    start = torch.randint(0, 20, (16, 1))
    seq = (start + 3 * torch.arange(9)) % 20
    logits = model(seq[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 20), seq[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
