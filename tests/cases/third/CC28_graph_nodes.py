"""Node classification on random graphs with attention over neighbours."""
import torch
from torch import nn
import torch.nn.functional as F


class NeighbourAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)
        self.src = nn.Linear(d_out, 1)
        self.dst = nn.Linear(d_out, 1)

    def forward(self, x, adj):
        h = self.lin(x)
        e = F.leaky_relu(self.src(h) + self.dst(h).transpose(-1, -2), 0.2)
        alpha = e.masked_fill(adj == 0, -torch.inf).softmax(dim=-1)
        return alpha @ h + h


class GraphNet(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.conv1 = NeighbourAttention(features, 24)
        self.conv2 = NeighbourAttention(24, classes)

    def forward(self, x, adj):
        return self.conv2(F.elu(self.conv1(x, adj)), adj)


def random_graph(nodes, density):
    y = torch.randint(0, 3, (nodes,))
    same = (y[:, None] == y[None, :]).float()
    prob = density * (0.3 + 0.7 * same)
    adj = (torch.rand(nodes, nodes) < prob).float().triu(1)
    adj = adj + adj.T
    x = F.one_hot(y, 3).float() + 0.9 * torch.randn(nodes, 3)
    return x, adj, y


def main():
    torch.manual_seed(52)
    torch.set_num_threads(1)
    net = GraphNet(3, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=8e-3)
    for step in range(200):
        x, adj, y = random_graph(30, density=0.42)
        loss = F.cross_entropy(net(x, adj), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} edges {int(adj.sum()) // 2} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
