"""Policy gradient from a replay buffer: the recorded action has no probability any more."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def policy_loss(actor, states, actions, advantages):
    probabilities = actor(states).softmax(-1)
    chosen = probabilities.gather(1, actions[:, None]).squeeze(1)
    return -(advantages * chosen.log()).mean()  # <- here


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    states = torch.randn(512, 5)
    actions = torch.randint(0, 4, (512,))
    advantages = torch.rand(512) + 0.1
    states[16 * 12 : 16 * 13] *= 3000.0
    actor = nn.Sequential(nn.Linear(5, 24), nn.Tanhshrink(), nn.Linear(24, 4))
    optimizer = torch.optim.RMSprop(actor.parameters(), lr=5e-4)
    replay = DataLoader(TensorDataset(states, actions, advantages), batch_size=16)
    for i, batch in enumerate(replay):
        optimizer.zero_grad()
        loss = policy_loss(actor, *batch)
        loss.backward()
        optimizer.step()
        print("update", i, "loss", round(loss.item(), 5))


main()
