"""Q-learning in a corridor maze: every move costs one, the exit ends the episode."""

import random

import torch
from torch import nn


class Corridor:
    def __init__(self, length=8):
        self.length = length

    def reset(self):
        self.place = random.randrange(self.length - 1)
        return self.observe()

    def observe(self):
        view = torch.zeros(self.length)
        view[self.place] = 1.0
        return view

    def step(self, action):
        self.place = max(0, min(self.length - 1, self.place + (1 if action == 1 else -1)))
        done = self.place == self.length - 1
        return self.observe(), -1.0, done


class QNetwork(nn.Module):
    def __init__(self, size, actions, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, actions)
        )

    def forward(self, view):
        return self.layers(view)


def collect(env, net, memory, epsilon, moves):
    view = env.reset()
    for _ in range(moves):
        explore = random.random() < epsilon
        with torch.no_grad():
            action = random.randrange(2) if explore else int(net(view).argmax())
        following, reward, done = env.step(action)
        memory.append((view, action, reward, following, float(done)))
        view = env.reset() if done else following


def learn(net, target, optimizer, memory, gamma=0.9, batch=64):
    views, actions, rewards, following, done = zip(*random.sample(memory, batch))
    views, following = torch.stack(views), torch.stack(following)
    actions, rewards, done = torch.tensor(actions), torch.tensor(rewards), torch.tensor(done)
    with torch.no_grad():
        goal = rewards + gamma * (1 - done) * target(following).max(1).values
    value = net(views).gather(1, actions.unsqueeze(1)).squeeze(1)
    loss = nn.functional.smooth_l1_loss(value, goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    random.seed(0)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    env = Corridor()
    net, target = QNetwork(8, 2), QNetwork(8, 2)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    memory = []
    collect(env, net, memory, 1.0, 200)
    for update in range(240):
        collect(env, net, memory, 0.3, 4)
        loss = learn(net, target, optimizer, memory)
        if update % 20 == 0:
            target.load_state_dict(net.state_dict())
            print(f"update {update} td loss {loss:.4f}")


if __name__ == "__main__":
    main()
