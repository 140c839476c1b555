"""Imitation of moves with a legality mask; in one position nothing is legal."""

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(9, 40), nn.ReLU(), nn.Linear(40, 9))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-3)

    def learn(self, boards, legal, moves):
        logits = self.policy(boards)
        logits = torch.where(legal, logits, torch.tensor(-torch.inf))
        log_p = logits.log_softmax(dim=1)  # <- here
        loss = -log_p[torch.arange(len(moves)), moves].mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def positions(step):
    boards = torch.randint(-1, 2, (32, 9)).float()
    boards[:, 0] = 0
    if step == 13:
        boards[17] = 1.0
    legal = boards == 0
    moves = legal.float().argmax(1)
    return boards, legal, moves


torch.manual_seed(7)
torch.set_num_threads(1)
agent = Agent()
for step in range(40):
    print("step", step, agent.learn(*positions(step)))
