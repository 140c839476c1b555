import io

import torch
from torch import nn

torch.set_num_threads(1)
TOTAL = 400


def setup():
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=8e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)
    return net, optimizer, scheduler


def save(net, optimizer, scheduler, step):
    stream = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(), "step": step}, stream)
    return stream.getvalue()


def restore(blob):
    state = torch.load(io.BytesIO(blob))
    net, optimizer, scheduler = setup()
    net.load_state_dict(state["net"])
    return net, optimizer, scheduler, state["step"]


def advance(net, optimizer, scheduler, start, stop, mix):
    for step in range(start, stop):
        x = torch.randn(128, 8)
        y = torch.sin(x @ mix)
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0 or step == start:
            print(f"step {step} loss {loss.item():.5f} lr {scheduler.get_last_lr()[0]:.5f}")


def main():
    torch.manual_seed(13)
    mix = torch.randn(8, 1) / 8 ** 0.5
    net, optimizer, scheduler = setup()
    advance(net, optimizer, scheduler, 0, 320, mix)
    blob = save(net, optimizer, scheduler, 320)
    net, optimizer, scheduler, step = restore(blob)
    advance(net, optimizer, scheduler, step, TOTAL, mix)


if __name__ == "__main__":
    main()
