import torch
from torch import nn

torch.set_num_threads(1)


def stream(steps, gen):
    mix = torch.randn(6, 1, generator=gen) / 6 ** 0.5
    for day in range(steps):
        volts = torch.randn(96, 6, generator=gen)
        load = torch.sin(volts @ mix)
        if 170 <= day < 178:
            volts = volts * 60
        yield volts, load


def main():
    torch.manual_seed(17)
    gen = torch.Generator().manual_seed(170)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for day, (volts, load) in enumerate(stream(300, gen)):
        loss = nn.functional.mse_loss(net(volts), load)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if day % 10 == 0:
            print(f"day {day} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
