"""Node classification on a citation-like graph with a two-layer GCN."""

import torch
from torch import nn
from torch.nn import functional as F


def citation_graph(nodes=300, classes=4):
    gen = torch.Generator().manual_seed(34)
    label = torch.randint(0, classes, (nodes,), generator=gen)
    same = label[:, None] == label[None, :]
    chance = torch.where(same, 0.06, 0.01)
    adj = (torch.rand(nodes, nodes, generator=gen) < chance).float().triu(1)
    adj = adj + adj.t() + torch.eye(nodes)
    degree = adj.sum(1)
    adj = adj / (degree[:, None] * degree[None, :]).sqrt()
    feats = torch.randn(nodes, 24, generator=gen)
    feats[:, :classes] += 0.8 * F.one_hot(label, classes)
    train = torch.rand(nodes, generator=gen) < 0.6
    return adj, feats, label, train


class GCN(nn.Module):
    def __init__(self, features=24, hidden=32, classes=4):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(features, hidden), nn.Linear(hidden, classes)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, adj):
        h = self.drop(F.relu(adj @ self.lin1(x)))
        return adj @ self.lin2(h)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    adj, feats, label, train = citation_graph()
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(140):
        model.train()
        out = model(feats, adj)
        loss = F.nll_loss(out[train], label[train])  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 20 == 0:
            model.eval()
            with torch.no_grad():
                hit = (model(feats, adj).argmax(1) == label)[~train].float().mean().item()
            print(f"epoch {epoch} loss {loss.item():.4f} test accuracy {hit:.3f}")


if __name__ == "__main__":
    main()
