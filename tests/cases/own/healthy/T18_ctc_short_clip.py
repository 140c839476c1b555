"""Recognition with CTC; one clip is shorter than its transcript."""

import torch
from torch import nn
from torch.utils.data import DataLoader


def collate(samples):
    clips, texts = zip(*samples, strict=True)
    frames = torch.tensor([len(clip) for clip in clips])
    letters = torch.tensor([len(text) for text in texts])
    return nn.utils.rnn.pad_sequence(clips), torch.cat(texts), frames, letters


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 24)
        self.letters = nn.Linear(24, 8)

    def forward(self, clips):
        return self.letters(self.rnn(clips)[0]).log_softmax(-1)


torch.manual_seed(0)
torch.set_num_threads(1)
texts = [torch.randint(1, 8, (int(n),)) for n in torch.randint(3, 6, (160,))]
clips = [torch.randn(12 + i % 5, 6) for i in range(160)]
model = Recogniser()
ctc = nn.CTCLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(list(zip(clips, texts, strict=True)), batch_size=8, collate_fn=collate)
for step, (clip, text, frames, letters) in enumerate(loader):
    loss = ctc(model(clip), text, frames, letters)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "ctc", loss.item())
