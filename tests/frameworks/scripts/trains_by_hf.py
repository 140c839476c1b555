"""Trainings by the Trainer of transformers, from a configuration: nothing is downloaded."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from truth import Truth, norm_of, tell

Watch = Callable[..., Any]


class Regression(nn.Module):
    """A model that knows nothing of the number of items in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        guess = self.body(x)
        return {"loss": (guess - labels).pow(2).mean(), "logits": guess}


class Recording(Trainer):
    """Keeps its losses as users do who print them."""

    truth: Truth

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        found = super().compute_loss(*args, **kwargs)
        if self.model.training:
            self.truth.loss(found[0] if isinstance(found, tuple) else found)
        return found


class Noting(TrainerCallback):
    """What the public callback sees before an update, and what is logged after it."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def on_pre_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
        clipped = norm_of(kwargs["model"].parameters())
        self.truth.update(kwargs["optimizer"], math.nan, clipped)

    def on_log(self, *_: Any, logs: dict[str, float], **kwargs: Any) -> None:
        if "grad_norm" in logs:
            self.truth.norms[-1] = float(logs["grad_norm"])


def rows(count: int, bad: int = -1) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(7)
    found = [
        {"x": torch.randn(4, generator=made), "labels": torch.randn(1, generator=made)}
        for _ in range(count)
    ]
    if bad >= 0:
        found[bad]["x"][0] = float("inf")
    return found


def texts(count: int) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 32, (count, 8), generator=made)
    # Batches with different numbers of words, by which the loss is normalised.
    labels = torch.where(torch.rand(count, 8, generator=made) < 0.3, -100, ids)
    return [{"input_ids": i, "labels": label} for i, label in zip(ids, labels, strict=True)]


def train(truth: Truth, model: nn.Module, data: Any, *, optimizers: Any = None, **options: Any):
    truth.names = [name for name, _ in model.named_parameters()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=1,
            **options,
        )
        trainer = Recording(
            model,
            arguments,
            train_dataset=data,
            eval_dataset=data[:2],
            optimizers=optimizers or (None, None),
            callbacks=[Noting(truth)],
        )
        trainer.truth = truth
        trainer.train()
    truth.finish(model, trainer.optimizer)


def language_model(truth: Truth, watch: Watch) -> None:
    """Accumulation with losses that are normalised already, a clipping that acts, evaluation."""
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    )
    watch(model)
    truth.max_norm = 0.25
    train(
        truth,
        model,
        texts(24),
        gradient_accumulation_steps=2,
        max_steps=6,
        max_grad_norm=0.25,
        learning_rate=1e-2,
        eval_strategy="steps",
        eval_steps=3,
    )


def no_clipping(truth: Truth, watch: Watch) -> None:
    """`max_grad_norm=0`: the norm is asked for with an infinite bound. The optimizer is ours."""
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    watch(model, optimizer, scheduler=schedule)
    truth.divided_by = 2
    train(
        truth,
        model,
        rows(24),
        optimizers=(optimizer, schedule),
        gradient_accumulation_steps=2,
        max_steps=5,
        max_grad_norm=0,
    )


def half_compiled(truth: Truth, watch: Watch) -> None:
    """bfloat16 autocast, a compiled model."""
    model = Regression()
    watch(model)
    truth.max_norm = 0.5
    train(
        truth,
        model,
        rows(8),
        max_steps=4,
        max_grad_norm=0.5,
        bf16=True,
        torch_compile=True,
        torch_compile_backend="eager",
    )


def hidden_nan(truth: Truth, watch: Watch) -> None:
    """The Trainer's own log replaces a loss that is not a number."""
    model = Regression()
    watch(model)
    truth.max_norm = 1.0
    train(truth, model, rows(6, bad=5), max_steps=3, max_grad_norm=1.0, seed=1)


if __name__ == "__main__":
    tell({case.__name__: case for case in (language_model, no_clipping, half_compiled, hidden_nan)})
