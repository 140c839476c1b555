"""Twenty-day realised variance path of a share from its recent variances, causal mixer."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

HISTORY, HORIZON = 20, 20


def variance_paths(count=2048):
    gen = torch.Generator().manual_seed(22)
    log_var = torch.zeros(count, HISTORY + HORIZON)
    state = 0.4 * torch.randn(count, generator=gen)
    for t in range(HISTORY + HORIZON):
        state = 0.99 * state + 0.04 * torch.randn(count, generator=gen)
        log_var[:, t] = state
    return 1e-4 * log_var.exp()


class VarianceMixer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = nn.Linear(HISTORY, width)
        self.norm = nn.LayerNorm(width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, HORIZON)
        nn.init.normal_(self.out.weight, std=1e-6)
        nn.init.constant_(self.out.bias, 1e-4)

    def forward(self, log_history):
        h = torch.tanh(self.inp(log_history))
        h = h + torch.tanh(self.mid(self.norm(h)))
        return self.out(h)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    paths = variance_paths()
    train, held_out = paths[:1792], paths[1792:]
    model = VarianceMixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-6, weight_decay=0.0)
    scaler = torch.amp.GradScaler("cpu")
    scheduler = CosineAnnealingLR(optimizer, T_max=150)
    for step in range(150):
        rows = torch.randint(0, len(train), (512,))
        past, future = train[rows, :HISTORY], train[rows, HISTORY:]
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model((past / 1e-4).log())
            loss = F.mse_loss(pred.float(), future)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if step % 30 == 0 or step == 149:
            with torch.no_grad():
                val = F.mse_loss(model((held_out[:, :HISTORY] / 1e-4).log()), held_out[:, HISTORY:])
            print(f"step {step} loss {loss.item():.4e} val {val.item():.4e}")


if __name__ == "__main__":
    main()
