"""Hidden Markov model with neural emissions, trained by the forward algorithm on sequences of growing length."""
import torch
from torch import nn


class NeuralHMM(nn.Module):
    def __init__(self, states=4, symbols=24, dim=16):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(states))
        self.transition = nn.Parameter(torch.randn(states, states))
        self.state_vectors = nn.Embedding(states, dim)
        self.emit = nn.Linear(dim, symbols)

    def likelihood(self, seq):
        trans = torch.softmax(self.transition, 1)
        emission = torch.softmax(self.emit(self.state_vectors.weight), 1)
        alpha = torch.softmax(self.start, 0) * emission[:, seq[:, 0]].T
        for t in range(1, seq.shape[1]):
            alpha = (alpha @ trans) * emission[:, seq[:, t]].T
        return torch.log(alpha.sum(1))

    def forward(self, seq):
        return -self.likelihood(seq).mean() / seq.shape[1]


def generate(n, length, symbols=24, states=4):
    state = torch.randint(0, states, (n,))
    out = []
    for _ in range(length):
        out.append(state * (symbols // states) + torch.randint(0, symbols // states, (n,)))
        move = torch.rand(n) < 0.3
        state = torch.where(move, (state + 1) % states, state)
    return torch.stack(out, 1)


def main():
    torch.manual_seed(41)
    torch.set_num_threads(1)
    model = NeuralHMM()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for step in range(160):
        seq = generate(16, 14 * (1 + step // 50))
        loss = model(seq)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} length {seq.shape[1]} nll per symbol {loss.item():.4f}")


if __name__ == "__main__":
    main()
