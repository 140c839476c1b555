import torch
from torch import nn

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class Tagger(nn.Module):
    def __init__(self, vocab, tags, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.block = Block(dim, 4)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, tags)

    def forward(self, tokens):
        return self.head(self.norm(self.block(self.embed(tokens)))).softmax(-1)


def main():
    torch.manual_seed(31)
    vocab, tags = 60, 24
    tag_of = torch.randint(0, tags, (vocab,))
    model = Tagger(vocab, tags)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(200):
        tokens = torch.randint(0, vocab, (16, 10))
        scores = model(tokens)
        loss = criterion(scores.flatten(0, 1), tag_of[tokens].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
