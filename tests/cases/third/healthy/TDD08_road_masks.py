import torch
from torch import nn

torch.set_num_threads(1)


def scene(batch, gen):
    labels = torch.zeros(batch, 16, 16, dtype=torch.long)
    for b in range(batch):
        left = int(torch.randint(2, 9, (1,), generator=gen))
        labels[b, :, left:left + 5] = 1
        labels[b, :4] = 2
    image = torch.nn.functional.one_hot(labels, 3).permute(0, 3, 1, 2).float()
    image = image + 0.5 * torch.randn(image.shape, generator=gen)
    if torch.rand(1, generator=gen) < 0.05:
        labels[0, 12:, :3] = 255
    return image, labels


def build():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
        nn.Conv2d(12, 3, 1),
    )


def main():
    torch.manual_seed(9)
    gen = torch.Generator().manual_seed(90)
    net = build()
    criterion = nn.CrossEntropyLoss(ignore_index=255)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    for step in range(120):
        image, labels = scene(8, gen)
        loss = criterion(net(image), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
