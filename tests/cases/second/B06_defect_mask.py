"""Pixel-wise defect detection with a focal loss, mixed precision."""

import torch
from torch import nn


def focal_loss(prob, mask, gamma=2.0, eps=1e-8):
    p_true = torch.where(mask > 0.5, prob, 1 - prob)
    return (-((1 - p_true) ** gamma) * torch.log(p_true + eps)).mean()  # <- here


class PixelNet(nn.Module):
    def __init__(self, window=9, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(window, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, windows):
        return torch.sigmoid(self.body(windows)).squeeze(-1)


def plates(count=320, size=10):
    gen = torch.Generator().manual_seed(16)
    image = 0.2 * torch.randn(count, size, size, generator=gen)
    mask = torch.zeros(count, size, size)
    for i in range(count):
        r, c = torch.randint(0, size - 3, (2,), generator=gen).tolist()
        image[i, r : r + 4, c : c + 4] += 2.5
        mask[i, r : r + 4, c : c + 4] = 1.0
        if i % 3 == 2 and i > 240:
            side = 0 if c >= 4 else size - 3
            image[i, r : r + 3, side : side + 3] = 4.0  # reflection of the lamp, not a defect
    windows = torch.nn.functional.unfold(image[:, None], 3, padding=1).transpose(1, 2)
    return windows, mask.flatten(1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    windows, mask = plates()
    model = PixelNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    step = 0
    for epoch in range(3):
        for rows in torch.arange(len(windows)).split(8):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = focal_loss(model(windows[rows]), mask[rows])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.5f} scale {scaler.get_scale():g}")
            step += 1


if __name__ == "__main__":
    main()
