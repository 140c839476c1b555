"""Line recognition with CTC: short strips of columns against transcripts."""

import torch
from torch import nn
from torch.nn import functional as F

ALPHABET = 9


class LineReader(nn.Module):
    def __init__(self, height=8, hidden=32):
        super().__init__()
        self.columns = nn.Linear(height, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, ALPHABET + 1)

    def forward(self, strip):
        h, _ = self.rnn(F.relu(self.columns(strip)))
        return self.out(h).log_softmax(-1)


class LineSet:
    def __init__(self, count=320, height=8):
        gen = torch.Generator().manual_seed(28)
        glyph = torch.randn(ALPHABET + 1, height, generator=gen)
        self.lines = []
        for i in range(count):
            n = int(torch.randint(2, 6, (1,), generator=gen))
            text = torch.randint(1, ALPHABET + 1, (n,), generator=gen)
            strip = glyph[text].repeat_interleave(3, 0)
            if i == 210:
                strip = strip[:3]  # cropped at the page border
            self.lines.append((strip + 0.2 * torch.randn(strip.shape, generator=gen), text))

    def batches(self, size=16):
        for start in range(0, len(self.lines), size):
            part = self.lines[start : start + size]
            strips = nn.utils.rnn.pad_sequence([s for s, _ in part], batch_first=True)
            widths = torch.tensor([len(s) for s, _ in part])
            texts = torch.cat([t for _, t in part])
            lengths = torch.tensor([len(t) for _, t in part])
            yield strips, widths, texts, lengths


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = LineSet()
    model = LineReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    step = 0
    for epoch in range(5):
        for strips, widths, texts, lengths in data.batches():
            logp = model(strips).transpose(0, 1)
            loss = F.ctc_loss(logp, texts, widths, lengths)  # <- here
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
