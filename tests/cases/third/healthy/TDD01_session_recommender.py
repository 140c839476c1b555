import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Factoriser(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) / self.user.embedding_dim ** 0.5


def main():
    torch.manual_seed(3)
    users, items, dim = 60, 40, 8
    left, right = torch.randn(users, 3), torch.randn(items, 3)
    model = Factoriser(users, items, dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3, betas=(0.9, 0.99))
    for step in range(400):
        u = torch.randint(0, users, (2048,))
        i = torch.randint(0, items, (2048,))
        rating = (left[u] * right[i]).sum(-1) / 3 ** 0.5
        loss = F.mse_loss(model(u, i).float(), rating)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
