"""Group-relative policy gradient: a small policy writes digit strings and is paid for ascending pairs."""

import torch
from torch import nn


class Writer(nn.Module):
    def __init__(self, digits=8, width=48):
        super().__init__()
        self.embed = nn.Embedding(digits + 1, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, digits)
        self.digits = digits

    def sample(self, count, length):
        state = torch.zeros(count, self.cell.hidden_size)
        token = torch.full((count,), self.digits)
        tokens, logs = [], []
        for _ in range(length):
            state = self.cell(self.embed(token), state)
            choice = torch.distributions.Categorical(logits=self.head(state))
            token = choice.sample()
            tokens.append(token)
            logs.append(choice.log_prob(token))
        return torch.stack(tokens, 1), torch.stack(logs, 1)


def score(tokens):
    return (tokens[:, 1:] >= tokens[:, :-1]).float().mean(1)


def relative(reward, group):
    grouped = reward.view(-1, group)
    centred = grouped - grouped.mean(1, keepdim=True)
    return (centred / (grouped.std(1, keepdim=True) + 1e-4)).flatten()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = Writer()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)
    for update in range(60):
        tokens, logs = policy.sample(count=48, length=5)
        reward = score(tokens)
        advantage = relative(reward, group=6)
        loss = -(advantage.unsqueeze(1) * logs).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0, error_if_nonfinite=False)
        optimizer.step()
        if update % 5 == 0:
            print(f"update {update} reward {reward.mean().item():.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
