"""Character model of recipes: a one-layer causal transformer."""

import torch
from torch import nn


class RecipeModel(nn.Module):
    def __init__(self, vocab, context, dim=32):
        super().__init__()
        self.token = nn.Embedding(vocab, dim)
        self.place = nn.Parameter(0.02 * torch.randn(context, dim))
        self.block = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, tokens):
        h = self.token(tokens) + self.place[: tokens.shape[1]]
        return self.head(self.norm(self.block(h, src_mask=self.causal, is_causal=True)))


class Corpus:
    def __init__(self, vocab, length, seed):
        gen = torch.Generator().manual_seed(seed)
        follow = torch.randint(0, vocab, (vocab, 2), generator=gen)
        text = [0]
        for coin in (torch.rand(length, generator=gen) < 0.85).tolist():
            text.append(int(follow[text[-1], 0 if coin else 1]) if text[-1] or coin else 5)
        self.text, self.gen = torch.tensor(text), gen

    def batch(self, size, context):
        start = torch.randint(0, len(self.text) - context - 1, (size,), generator=self.gen)
        rows = self.text[start[:, None] + torch.arange(context + 1)]
        return rows[:, :-1], rows[:, 1:]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    corpus = Corpus(vocab=30, length=3000, seed=2)
    model = RecipeModel(30, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.01)
    for step in range(120):
        tokens, following = corpus.batch(16, 10)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
