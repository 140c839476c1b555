import torch
from torch import nn

torch.set_num_threads(1)


def reset(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


class AutoEncoder(nn.Module):
    def __init__(self, size=20, code=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.Tanh(), nn.Linear(32, size))
        self.apply(reset)

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    torch.manual_seed(23)
    basis = torch.randn(4, 20) / 2
    net = AutoEncoder()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(300):
        x = torch.randn(100, 4) @ basis
        loss = nn.functional.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
