"""Graph attention on sampled citation neighbourhoods."""

import torch
from torch import nn


class GraphAttention(nn.Module):
    def __init__(self, inside, outside, heads=2):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(inside, heads * outside, bias=False)
        self.source = nn.Parameter(0.3 * torch.randn(heads, outside))
        self.target = nn.Parameter(0.3 * torch.randn(heads, outside))
        self.skip = nn.Linear(inside, heads * outside)

    def forward(self, x, adjacency):
        h = self.project(x).unflatten(1, (self.heads, -1))
        towards = (h * self.target).sum(-1)
        away = (h * self.source).sum(-1)
        energy = nn.functional.leaky_relu(towards.unsqueeze(1) + away.unsqueeze(0), 0.2)
        energy = energy.masked_fill(~adjacency.unsqueeze(-1), float("-inf"))
        weight = energy.softmax(dim=1)
        mixed = torch.einsum("ijh,jhd->ihd", weight, h)
        return mixed.flatten(1) + self.skip(x)


class PaperNet(nn.Module):
    def __init__(self, features, topics):
        super().__init__()
        self.first = GraphAttention(features, 12)
        self.second = GraphAttention(24, 12)
        self.head = nn.Linear(24, topics)

    def forward(self, x, adjacency):
        h = nn.functional.elu(self.first(x, adjacency))
        return self.head(nn.functional.elu(self.second(h, adjacency)))


class Library:
    def __init__(self, papers=300, topics=4, features=16, seed=1):
        self.gen = torch.Generator().manual_seed(seed)
        self.topic = torch.randint(0, topics, (papers,), generator=self.gen)
        self.words = torch.randn(topics, features, generator=self.gen)[self.topic] * 0.5
        self.words = self.words + torch.randn(papers, features, generator=self.gen)
        same = self.topic[:, None] == self.topic[None]
        chance = torch.where(same, 0.35, 0.05)
        links = torch.rand(papers, papers, generator=self.gen) < chance
        self.links = (links | links.T) | torch.eye(papers, dtype=torch.bool)

    def sample(self, size):
        pick = torch.randperm(len(self.topic), generator=self.gen)[:size]
        return self.words[pick], self.links[pick][:, pick], self.topic[pick]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    library = Library()
    model = PaperNet(16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    for step in range(80):
        words, links, topic = library.sample(36)
        logits = model(words, links)
        loss = nn.functional.cross_entropy(logits, topic)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            correct = (logits.argmax(1) == topic).float().mean().item()
            print(f"step {step} loss {loss.item():.4f} accuracy {correct:.3f}")


if __name__ == "__main__":
    main()
