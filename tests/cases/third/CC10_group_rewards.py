"""Policy gradient with several sampled answers per prompt and rewards normalised inside each group."""
import torch
from torch import nn

PROMPTS, GROUP, ACTIONS = 12, 6, 5


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.logits = nn.Linear(32, ACTIONS)

    def forward(self, s):
        return torch.distributions.Categorical(logits=self.logits(self.body(s)))


def advantages(rewards):
    mean = rewards.mean(dim=1, keepdim=True)
    std = rewards.std(dim=1, keepdim=True)
    return (rewards - mean) / std


def main():
    torch.manual_seed(4)
    torch.set_num_threads(1)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    scorer = torch.randn(6, ACTIONS)
    for step in range(300):
        state = torch.randn(PROMPTS, 6)
        dist = policy(state)
        action = dist.sample((GROUP,)).T
        score = (state @ scorer).gather(1, action) + 0.3 * torch.randn(PROMPTS, GROUP)
        score = score.clamp(-4.0, 4.0)
        adv = advantages(score)
        logp = dist.log_prob(action.T).T
        loss = -(adv * logp).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} reward {score.mean().item():.3f}")


if __name__ == "__main__":
    main()
