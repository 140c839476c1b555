"""Imitate a scripted player on a small board; occupied cells are removed from the move distribution."""
import argparse

import torch
from torch import nn

CELLS = 9


class MoveNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(2 * CELLS, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.moves = nn.Linear(hidden, CELLS)

    def forward(self, board):
        planes = torch.cat([board == 1, board == -1], 1).float()
        h = torch.relu(self.fc2(torch.relu(self.fc1(planes))))
        logits = self.moves(h).masked_fill(board != 0, float("-inf"))
        return torch.log_softmax(logits, 1)


def positions(n, max_stones):
    board = torch.zeros(n, CELLS)
    for i in range(n):
        stones = int(torch.randint(0, max_stones + 1, ()))
        cells = torch.randperm(CELLS)[:stones]
        board[i, cells] = torch.tensor([1.0, -1.0]).repeat(CELLS)[:stones]
    value = torch.tensor([3.0, 1.5, 2.8, 1.2, 4.0, 1.1, 2.6, 1.4, 2.4]) - 9 * (board != 0)
    return board, nn.functional.one_hot(value.argmax(1), CELLS).float()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--hidden", type=int, default=48)
    args = p.parse_args()
    torch.manual_seed(23)
    torch.set_num_threads(1)
    net = MoveNet(args.hidden)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(args.steps):
        board, target = positions(32, max_stones=6)
        log_prob = net(board)
        loss = -log_prob.gather(1, target.argmax(1, keepdim=True)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
