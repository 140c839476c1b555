"""Convolutional autoencoder with a step that is far too long."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)

    def forward(self, image):
        return self.up(nn.functional.leaky_relu(self.down(image), 0.1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.randn(640, 1, 8, 8)
    model = AutoEncoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step, batch in enumerate(DataLoader(images, batch_size=16)):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", loss.item())


main()
