"""A whole model in half precision with RMSprop: small squared gradients and eps vanish."""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.channels = nn.Linear(6, 6), nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        x = x + torch.tanh(self.tokens(x.transpose(1, 2))).transpose(1, 2)
        x = x + torch.tanh(self.channels(x))
        return self.head(x.mean(1)).squeeze(1)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Mixer().half()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step in range(20):
    x = torch.randn(64, 6, 8)
    loss = nn.functional.mse_loss(model(x.half()).float(), 0.01 * x[:, :, 0].sum(1)) * 0.02
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- here
    print("step", step, "loss", loss.item())
