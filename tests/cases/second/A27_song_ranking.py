"""Song recommendation from implicit feedback: pairwise ranking of a played against an unplayed song."""

import torch
from torch import nn


class Taste(nn.Module):
    def __init__(self, users, songs, dim=320):
        super().__init__()
        self.users = nn.Embedding(users, dim)
        self.songs = nn.Embedding(songs, dim)
        self.popularity = nn.Embedding(songs, 1)
        nn.init.zeros_(self.popularity.weight)

    def score(self, user, song):
        return (self.users(user) * self.songs(song)).sum(1) + self.popularity(song).squeeze(1)


class Plays:
    def __init__(self, users=120, songs=200, seed=5):
        self.gen = torch.Generator().manual_seed(seed)
        left = torch.randn(users, 4, generator=self.gen)
        right = torch.randn(songs, 4, generator=self.gen)
        self.liking = left @ right.T

    def batch(self, size):
        users, songs = self.liking.shape
        user = torch.randint(0, users, (size,), generator=self.gen)
        one = torch.randint(0, songs, (size,), generator=self.gen)
        two = torch.randint(0, songs, (size,), generator=self.gen)
        swap = self.liking[user, one] < self.liking[user, two]
        return user, torch.where(swap, two, one), torch.where(swap, one, two)


def ranking_loss(better, worse):
    return torch.log(1 + torch.exp(worse - better)).mean()  # <- here


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    plays, model = Plays(), Taste(120, 200)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for step in range(250):
        user, liked, other = plays.batch(128)
        better, worse = model.score(user, liked), model.score(user, other)
        loss = ranking_loss(better, worse)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            order = (better > worse).float().mean().item()
            print(f"step {step} loss {loss.item():.4f} ordered {order:.3f}")


if __name__ == "__main__":
    main()
