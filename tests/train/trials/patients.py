"""Small trainings that fail at a known step, each for one cause; what a trial must confirm."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import tuimon

PATIENCE = tuimon.Policy(trials_limit_s=100.0)  # a machine may be busy
BAD = 3  # the step at which it goes wrong
SAMPLES = 8
MARK = 2.5  # in the first feature of that sample
GUILTY = 5  # the sample that does it, where it is one

LossOf = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


class Patient(NamedTuple):
    """A training that fails.

    Attributes:
        cause: what it fails for.
        model: makes its model.
        loss_of: its loss, given model, inputs and targets.
        sample: the sample that must be found guilty; None: none need be found.
        autocast: to float16.
        spoil: changes batch or model before the bad step; else the guilty sample is marked.
    """

    cause: str
    model: Callable[[], nn.Module]
    loss_of: LossOf
    sample: int | None = GUILTY
    autocast: bool = False
    spoil: Callable[[torch.Tensor, torch.Tensor, nn.Module], None] | None = None


def net(out: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, out))


def marked(x):
    """1 for the guilty sample, which carries its guilt wherever it stands; else 0."""
    return (x[:, :1] == MARK).to(x.dtype)


def log_of_softmax(model, x, y):
    p = F.softmax(model(x) * (1 + 1e4 * marked(x)), dim=1)
    return -(F.one_hot(y, 4) * torch.log(p)).sum(1).mean()


def log_of_almost_zero(model, x, y):
    return -torch.log(torch.sigmoid(model(x)) * torch.where(marked(x) > 0, 1e-43, 1.0)).mean()


def distance(model, x, y):
    z = model(x)
    other = torch.where(marked(x) > 0, z.detach(), x[:, :4])
    return ((z - other) * (1 - marked(x))).pow(2).sum(1).sqrt().mean()


def standardised(model, x, y):
    z = model(x * (1 - marked(x)))
    spread = (x * (1 - marked(x))).std(1, keepdim=True)
    return (z / spread).pow(2).mean()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(6, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, x, mask):
        scores = self.key(x)
        weights = scores.masked_fill(mask, -torch.inf).softmax(-1)
        return self.out(weights * x)


def attention(model, x, y):
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask = mask | (marked(x) > 0)
    return F.cross_entropy(model(x, mask), y)


class Elu(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x, torch.exp(x) - 1)


def elu(model, x, y):
    return F.cross_entropy(model(x * (1 + 1e4 * marked(x))), y)


def gamma(model, x, y):
    z = torch.sigmoid(model(x)) + 0.1 - 2 * marked(x)
    return (z ** (1 / 2.2)).mean()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        mean, logvar = self.body(x).chunk(2, dim=1)
        return mean * torch.exp(logvar)


def variance(model, x, y):
    return model(x * (1 + 1e3 * marked(x))).pow(2).mean()


def entropy(model, x, y):
    illegal = (marked(x) > 0) & (torch.arange(4) == 2)
    logp = F.log_softmax(model(x).masked_fill(illegal, -torch.inf), dim=1)
    return (logp.exp() * logp).sum(1).mean()


def ignored(x, y, model):
    y.fill_(-100)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.second = nn.Linear(12, 4)

    def forward(self, x, gain):
        h = self.first(x)
        return self.second(h * gain.to(h.dtype))


def gated(model, x, y):
    gain = 1 + 6e4 * marked(x)
    return F.cross_entropy(model(x * 10, gain).float() * 1e-6, y)


def plain_loss(model, x, y):
    return F.cross_entropy(model(x), y)


def mark(x, y, model):
    x[GUILTY, 0] = MARK


def nan_in_batch(x, y, model):
    x[GUILTY, 2] = torch.nan


def nan_in_weights(x, y, model):
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan


PATIENTS = {
    "log of a softmax": Patient("log-zero", net, log_of_softmax),
    "log of almost 0": Patient("log-zero", net, log_of_almost_zero),
    "root of zero": Patient("sqrt-norm-zero", net, distance),
    "spread of zero": Patient("div-zero", net, standardised),
    "all masked": Patient("masked-softmax", Attention, attention),
    "branch not selected": Patient(
        "where-trap", lambda: nn.Sequential(nn.Linear(6, 8), Elu(), nn.Linear(8, 4)), elu
    ),
    "power of a negative": Patient("domain-error", net, gamma),
    "log-variance": Patient("exp-overflow", Encoder, variance),
    "masked entropy": Patient("zero-times-inf", net, entropy),
    "all ignored": Patient("empty-reduction", net, plain_loss, sample=None, spoil=ignored),
    "half overflows": Patient("fp16-overflow", Gated, gated, autocast=True),
    "hole in the data": Patient("data-nonfinite", net, plain_loss, spoil=nan_in_batch),
    "hole in the weights": Patient(
        "uninit-weights", net, plain_loss, sample=None, spoil=nan_in_weights
    ),
}


def train(patient: Patient, watch: Callable[..., object], *, first: int = 0) -> nn.Module:
    """Run it until after the bad step."""
    torch.manual_seed(0)
    model = patient.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watch(model, optimizer, policy=PATIENCE)
    for step in range(first, BAD + 1):
        x, y = torch.randn(SAMPLES, 6), torch.randint(0, 4, (SAMPLES,))
        if step == BAD:
            (patient.spoil or mark)(x, y, model)
        with torch.autocast("cpu", torch.float16, enabled=patient.autocast):
            loss = patient.loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
