"""Few-shot classification of event sequences: class prototypes and squared distances."""

import torch
from torch import nn
from torch.nn import functional as F

WAYS, SHOTS, QUERIES, SENSORS = 4, 3, 6, 8


def squared_distance(a, b):
    a2 = a.square().sum(-1, keepdim=True)  # <- here
    b2 = b.square().sum(-1)
    return a2 + b2 - 2 * a @ b.t()


class SequenceEncoder(nn.Module):
    """Per-step features, added up over the sequence."""

    def __init__(self, width=48, dim=64):
        super().__init__()
        self.step = nn.Sequential(nn.Linear(SENSORS, width), nn.ReLU(), nn.Linear(width, dim), nn.ReLU())

    def forward(self, x):
        return self.step(x).sum(1)


class Episodes:
    def __init__(self, classes=30):
        self.gen = torch.Generator().manual_seed(40)
        self.centre = torch.randn(classes, SENSORS, generator=self.gen)

    def draw(self, length):
        chosen = torch.randperm(len(self.centre), generator=self.gen)[:WAYS]
        mean = self.centre[chosen][:, None, None, :]
        noise = torch.randn(WAYS, SHOTS + QUERIES, length, SENSORS, generator=self.gen)
        return mean + 2.0 * noise


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    episodes = Episodes()
    model = SequenceEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    labels = torch.arange(WAYS).repeat_interleave(QUERIES)
    lengths = [12] * 60 + [24] * 40 + [96] * 20
    for step, length in enumerate(lengths):
        x = episodes.draw(length)
        with torch.autocast("cpu", dtype=torch.float16):
            emb = model(x.flatten(0, 1)).unflatten(0, (WAYS, SHOTS + QUERIES))
            proto, query = emb[:, :SHOTS].mean(1), emb[:, SHOTS:].flatten(0, 1)
            logits = -squared_distance(query, proto) / length
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            hit = (logits.argmax(1) == labels).float().mean().item()
            print(f"step {step} length {length} loss {loss.item():.4f} accuracy {hit:.2f}")


if __name__ == "__main__":
    main()
