"""Lightning modules, automatic and manual, in single and in mixed precision."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth, norm_of, tell

Watch = Callable[..., Any]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Regression(pl.LightningModule):
    """Calls a part of itself, so that its own forward never runs."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))
        self.truth = truth
        self.overflows_at = -1

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.body(x), y)
        if index == self.overflows_at:
            loss = loss * 1e30
        self.truth.loss(loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.body(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return [optimizer], [schedule]

    def configure_gradient_clipping(self, optimizer: Any, *how: Any, **also: Any) -> None:
        before = norm_of(self.parameters())
        self.clip_gradients(optimizer, *how, **also)
        self.truth.update(optimizer, before, norm_of(self.parameters()))


class Adversaries(pl.LightningModule):
    """Two optimizers that take turns by hand."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.maker = nn.Linear(4, 4)
        self.judge = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.truth = truth

    def training_step(self, batch: Any, index: int) -> None:
        real, _ = batch
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        self._turn(first, self.judge(self.maker(torch.randn(2, 4))).mean())
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        fake = self.maker(torch.randn(2, 4)).detach()
        self._turn(second, self.judge(real).mean() - self.judge(fake).mean())
        self.untoggle_optimizer(second)

    def _turn(self, optimizer: Any, loss: torch.Tensor) -> None:
        self.truth.loss(loss)
        optimizer.zero_grad()
        self.manual_backward(loss)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        before = norm_of(params)
        self.clip_gradients(optimizer, gradient_clip_val=self.truth.max_norm)
        self.truth.update(optimizer, before, norm_of(params))
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.Adam(self.maker.parameters(), lr=0.01),
            torch.optim.SGD(self.judge.parameters(), lr=0.02),
        ]


def loader(count: int) -> DataLoader:
    made = torch.Generator().manual_seed(7)
    data = TensorDataset(
        torch.randn(count, 4, generator=made), torch.randn(count, 1, generator=made)
    )
    return DataLoader(data, batch_size=2)


def fit(truth: Truth, watch: Watch, model: pl.LightningModule, **options: Any) -> None:
    truth.names = [name for name, _ in model.named_parameters()]
    watch(model)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    data = (loader(12), loader(4)) if isinstance(model, Regression) else (loader(6),)
    trainer.fit(model, *data)
    truth.finish(model, *trainer.optimizers)


def accumulated(truth: Truth, watch: Watch) -> None:
    """Accumulation and a clipping that acts: the last backward runs inside the step."""
    truth.divided_by, truth.max_norm = 2, 0.3
    fit(truth, watch, Regression(truth), accumulate_grad_batches=2, gradient_clip_val=0.3)


def plain(truth: Truth, watch: Watch) -> None:
    """Neither accumulation nor clipping."""
    fit(truth, watch, Regression(truth))


def by_value(truth: Truth, watch: Watch) -> None:
    """Elements are clipped, not the norm."""
    how = {"gradient_clip_val": 0.2, "gradient_clip_algorithm": "value"}
    fit(truth, watch, Regression(truth), **how)


def half(truth: Truth, watch: Watch) -> None:
    """bfloat16 autocast with accumulation."""
    truth.divided_by, truth.max_norm = 2, 0.3
    fit(
        truth,
        watch,
        Regression(truth),
        precision="bf16-mixed",
        accumulate_grad_batches=2,
        gradient_clip_val=0.3,
    )


def scaled(truth: Truth, watch: Watch) -> None:
    """float16 autocast with a loss scaler, and an update that the scaler leaves out."""
    model = Regression(truth)
    model.overflows_at = 3
    truth.max_norm, truth.skipped = 0.3, [3, 9]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    fit(
        truth,
        watch,
        model,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
        gradient_clip_val=0.3,
    )


def by_hand(truth: Truth, watch: Watch) -> None:
    """Manual optimization with two optimizers."""
    truth.optimizers, truth.max_norm = 2, 0.05
    fit(truth, watch, Adversaries(truth))


if __name__ == "__main__":
    tell({case.__name__: case for case in (accumulated, plain, by_value, half, scaled, by_hand)})
