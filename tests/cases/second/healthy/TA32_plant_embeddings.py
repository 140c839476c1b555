"""Plant species: classification with a term that pulls samples to the centre of their species."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LeafNet(nn.Module):
    def __init__(self, features, species, dim=12):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, dim))
        self.classify = nn.Linear(dim, species)

    def forward(self, leaf):
        feature = self.embed(leaf)
        return feature, self.classify(feature)


def compactness(feature, label, species):
    total = feature.new_zeros(())
    for kind in label.unique():
        members = feature[label == kind]
        total = total + (members - members.mean(0)).pow(2).sum(1).mean()
    return total / species


def make_leaves(count, species=5, seed=3):
    gen = torch.Generator().manual_seed(seed)
    label = torch.multinomial(torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1]), count, replacement=True, generator=gen)
    centre = torch.randn(species, 10, generator=gen)
    return TensorDataset(centre[label] + 0.7 * torch.randn(count, 10, generator=gen), label)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_leaves(960), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(2))
    model = LeafNet(10, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for epoch in range(4):
        for step, (leaf, label) in enumerate(loader):
            feature, logits = model(leaf)
            loss = nn.functional.cross_entropy(logits, label) + 0.05 * compactness(feature, label, 5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        scheduler.step()


if __name__ == "__main__":
    main()
