"""Two-tower document search with unit-length embeddings."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class UnitLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        length = x.norm(dim=1, keepdim=True)
        length = length.clamp(min=1e-3)
        y = x / length
        ctx.save_for_backward(y, length)
        return y

    @staticmethod
    def backward(ctx, grad):
        y, length = ctx.saved_tensors
        return (grad - y * (y * grad).sum(1, keepdim=True)) / length


class Tower(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, dim, mode="mean", padding_idx=0)
        self.project = nn.Sequential(nn.Linear(dim, 48, bias=False), nn.Tanh(), nn.Linear(48, dim, bias=False))

    def forward(self, text):
        return UnitLength.apply(self.project(self.words(text)))


def make_pairs(count, vocab=60, seed=10):
    gen = torch.Generator().manual_seed(seed)
    topic = torch.randint(0, 12, (count, 1), generator=gen)
    query = 1 + (topic * 5 + torch.randint(0, 5, (count, 4), generator=gen)) % (vocab - 1)
    text = 1 + (topic * 5 + torch.randint(0, 5, (count, 8), generator=gen)) % (vocab - 1)
    text[417] = 0
    return TensorDataset(query, text, topic.squeeze(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_pairs(640), batch_size=20)
    asks, finds = Tower(60), Tower(60)
    optimizer = torch.optim.Adam([*asks.parameters(), *finds.parameters()], lr=4e-3)
    for epoch in range(3):
        for step, (query, text, topic) in enumerate(loader):
            score = asks(query) @ finds(text).T / 0.2
            wanted = (topic[:, None] == topic[None]).float()
            wanted = wanted / wanted.sum(1, keepdim=True)
            loss = nn.functional.cross_entropy(score, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 8 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
