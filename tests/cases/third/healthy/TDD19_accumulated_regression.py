import torch
from torch import nn

torch.set_num_threads(1)


def main(steps=80, micro=4):
    torch.manual_seed(51)
    net = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 3))
    truth = torch.randn(12, 3) / 12 ** 0.5
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(micro):
            x = torch.randn(24, 12)
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x)
            loss = nn.functional.mse_loss(out.float(), x @ truth) / micro
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step} loss {total:.4f}")


main()
