"""Two-tower retrieval: users (mean of their history) against items, cosine scores."""

import torch
from torch import nn
from torch.nn import functional as F

ITEMS = 300


class TwoTower(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.items = nn.Embedding(ITEMS + 1, dim, padding_idx=0)
        self.user_proj = nn.Linear(dim, dim, bias=False)
        self.item_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, history, candidates):
        count = (history > 0).sum(1, keepdim=True).clamp(min=1)
        user = self.user_proj(self.items(history).sum(1) / count)
        item = self.item_proj(self.items(candidates))
        user = F.normalize(user, dim=-1)  # <- here
        item = F.normalize(item, dim=-1)
        return user @ item.t() * 8.0


def sample_histories(generator, size=64, length=8):
    taste = torch.randint(0, 10, (size,), generator=generator)
    offsets = torch.randint(0, ITEMS // 10, (size, length + 1), generator=generator)
    picks = offsets * 10 + taste[:, None] + 1
    history, target = picks[:, :length].clone(), picks[:, length]
    keep = torch.randint(2, length + 1, (size,), generator=generator)
    history[torch.arange(length)[None, :] >= keep[:, None]] = 0
    return history, target


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(1)
    model = TwoTower().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    for step in range(150):
        history, target = sample_histories(gen)
        if step >= 35 and step % 5 == 0:
            history[:2] = 0  # new users without any purchase
        logits = model(history, target).float()
        same = (target[:, None] % 10 == target[None, :] % 10).float()
        loss = -(same / same.sum(1, keepdim=True) * F.log_softmax(logits, 1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
