"""Actor-critic on a batched grid walk: separate optimizers for policy and value."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE, HORIZON, GAMMA = 5, 12, 0.95


class Walk:
    def __init__(self, count=32):
        self.count = count

    def reset(self):
        self.pos = torch.randint(0, SIZE, (self.count, 2))
        return self.observe()

    def observe(self):
        return F.one_hot(self.pos[:, 0] * SIZE + self.pos[:, 1], SIZE * SIZE).float()

    def step(self, action):
        move = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])[action]
        self.pos = (self.pos + move).clamp(0, SIZE - 1)
        reward = (self.pos == SIZE - 1).all(1).float()
        return self.observe(), reward


def network(outputs):
    return nn.Sequential(nn.Linear(SIZE * SIZE, 32), nn.Tanh(), nn.Linear(32, outputs))


def rollout(env, actor):
    states, actions, rewards = [], [], []
    state = env.reset()
    for _ in range(HORIZON):
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=actor(state)).sample()
        nxt, reward = env.step(action)
        states.append(state)
        actions.append(action)
        rewards.append(reward)
        state = nxt
    returns, running = [], torch.zeros(env.count)
    for reward in reversed(rewards):
        running = reward + GAMMA * running
        returns.insert(0, running)
    return torch.cat(states), torch.cat(actions), torch.cat(returns)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    env, actor, critic = Walk(), network(4), network(1)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-2)
    critic_opt = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.5)
    for update in range(120):
        states, actions, returns = rollout(env, actor)
        value = critic(states).squeeze(1)
        value_loss = F.mse_loss(value, returns)
        critic_opt.zero_grad()
        value_loss.backward()
        critic_opt.step()

        advantage = returns - value.detach()
        dist = torch.distributions.Categorical(logits=actor(states))
        policy_loss = -(dist.log_prob(actions) * advantage).mean() - 0.01 * dist.entropy().mean()
        actor_opt.zero_grad()
        policy_loss.backward()
        actor_opt.step()
        if update % 10 == 0:
            gain = returns.mean().item()
            print(f"update {update} return {gain:.3f} value loss {value_loss.item():.4f}")


if __name__ == "__main__":
    main()
