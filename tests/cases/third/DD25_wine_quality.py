import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def main():
    torch.manual_seed(91)
    x = torch.randn(1280, 7)
    y = torch.tanh(x[:, 0]) + x[:, 1] * 0.8 - 0.5 * x[:, 2]
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    net = nn.Sequential(nn.Linear(7, 32), nn.ELU(), nn.Linear(32, 1))
    ema = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    criterion = nn.SmoothL1Loss()
    step = 0
    for epoch in range(10):
        for features, score in loader:
            loss = criterion(net(features), score)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, p in zip(ema, net.parameters()):
                    slow.lerp_(p, 0.02)
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1


main()
