import torch
from torch import nn

torch.set_num_threads(1)


def upset(tensor, word, bit):
    memory = tensor.detach().view(-1).view(torch.int32)
    memory[word] ^= 1 << bit


def main():
    torch.manual_seed(111)
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    w = torch.randn(10, 1) / 10 ** 0.5
    for step in range(260):
        x = torch.randn(80, 10)
        loss = nn.functional.mse_loss(net(x), torch.sin(x @ w))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 143:
            upset(net[4].weight, 17, 30)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5g}")


main()
