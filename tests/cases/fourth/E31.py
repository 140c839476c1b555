import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

tagger = nn.GRU(8, 24, batch_first=True)
emb, out = nn.Embedding(15, 8), nn.Linear(24, 5)
params = [*tagger.parameters(), *emb.parameters(), *out.parameters()]
opt = torch.optim.Adam(params, lr=5e-3)
for step in range(60):
    tok = torch.randint(1, 15, (4, 6))
    tag = tok % 5
    if step == 26:
        tag = torch.full_like(tag, -100)
    logits = out(tagger(emb(tok))[0])
    loss = F.cross_entropy(logits.reshape(-1, 5), tag.reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
