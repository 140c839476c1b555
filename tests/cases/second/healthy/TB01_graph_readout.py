"""Graph classification with a small GIN: is the ring present in this random graph?"""

import torch
from torch import nn
from torch.nn import functional as F


class GINLayer(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.lin1 = nn.Linear(dim_in, dim_out)
        self.lin2 = nn.Linear(dim_out, dim_out)
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, h, adj):
        neighbours = adj @ h
        return self.lin2(F.relu(self.lin1((1 + self.eps) * h + neighbours)))


class GraphClassifier(nn.Module):
    def __init__(self, dim=32, classes=2):
        super().__init__()
        self.layers = nn.ModuleList([GINLayer(4, dim), GINLayer(dim, dim), GINLayer(dim, dim)])
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, h, adj):
        for layer in self.layers:
            h = F.relu(layer(h, adj))
        return self.out(self.norm(h.mean(1)))


def make_batch(nodes, size=16):
    label = torch.randint(0, 2, (size,))
    feats = torch.randn(size, nodes, 4) * 0.5 + 2.0
    feats[:, :, 0] += 3.0 * label[:, None]
    adj = (torch.rand(size, nodes, nodes) < 0.7).float()
    adj = torch.maximum(adj, adj.transpose(1, 2))
    return feats, adj, label


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GraphClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    sizes = [24] * 40 + [48] * 40 + [96] * 40
    for step, nodes in enumerate(sizes):
        feats, adj, label = make_batch(nodes)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(feats, adj)
        loss = F.cross_entropy(logits.float(), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            acc = (logits.argmax(1) == label).float().mean().item()
            print(f"step {step} nodes {nodes} loss {loss.item():.4f} acc {acc:.2f}")


if __name__ == "__main__":
    main()
