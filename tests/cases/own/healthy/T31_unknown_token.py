"""Language model: a token is beyond the size of the embedding."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class LanguageModel(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.out = nn.Linear(16, vocabulary)

    def forward(self, tokens):
        return self.out(self.layer(self.embed(tokens)))


torch.manual_seed(0)
torch.set_num_threads(1)
texts = torch.randint(0, 50, (160, 9))
texts[77, 3] = 49
model = LanguageModel(50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, tokens in enumerate(DataLoader(texts, batch_size=16)):
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
