"""Critic with a gradient penalty; where every unit is off the gradient has length zero."""

import torch
from torch import nn


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    length = (slope.pow(2).sum(1) + 1e-8).sqrt()
    return (length - 1).pow(2).mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    critic = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 1))
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    nn.init.constant_(critic[0].bias, 6.0)
    critic_steps = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    maker_steps = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for step in range(20):
        real = torch.randn(16, 2) + 1
        fake = maker(torch.randn(16, 4))
        judged = critic(fake.detach()).mean() - critic(real).mean()
        if step == 3:
            with torch.no_grad():
                critic[0].bias.sub_(0.01)
        loss = judged + 10 * penalty(critic, real, fake.detach())
        critic_steps.zero_grad()
        loss.backward()
        critic_steps.step()
        made = -critic(fake).mean()
        maker_steps.zero_grad()
        made.backward()
        maker_steps.step()
        print("step", step, "critic", loss.item(), "maker", made.item())


main()
