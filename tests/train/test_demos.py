"""The demo scripts do what their first lines say, here without tuimon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tuimon.demos import amp, nan_batch, saturated


class Watched:
    """Every optimizer step of this process: the gradient norm, and what to do before the update."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.max_norm: float | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        self.norms.append(norm.item())
        if self.max_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.max_norm, norm)


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Watches all optimizers for the time of one test."""
    watching = Watched()
    handle = register_optimizer_step_pre_hook(watching)
    yield watching
    handle.remove()


Printed = Callable[[], list[list[str]]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """The words of every line printed since the last call."""
    return lambda: [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_saturated_model_never_becomes_nan(
    watched: Watched, printed: Printed, seed: int, max_norm: float | None
) -> None:
    watched.max_norm = max_norm
    saturated.main(["--delay", "0", "--seed", str(seed)])
    losses = [float(words[-1]) for words in printed()]
    assert len(losses) == 20 and len(watched.norms) == 140
    assert all(30 <= loss <= 67 for loss in losses[1:])
    assert all(map(math.isfinite, watched.norms))
    # Clipping cannot be the cure of a gradient that is zero already.
    assert sum(norm == 0 for norm in watched.norms) >= 117


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_with_exp_the_weights_overflow(watched: Watched, seed: int, max_norm: float | None) -> None:
    watched.max_norm = max_norm
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        saturated.main(["--delay", "0", "--exp", "--seed", str(seed)])
    assert 4 <= len(watched.norms) <= 6


def test_one_nan_ends_the_training(watched: Watched, printed: Printed) -> None:
    nan_batch.main(["--delay", "0", "--steps", "120"])
    finite = [math.isfinite(norm) for norm in watched.norms]
    assert finite == [True] * 60 + [False] * 60
    assert printed()[-1] == ["final", "loss", "nan"]


def test_the_loss_scale_backs_off_and_recovers(watched: Watched, printed: Printed) -> None:
    amp.main(["--delay", "0", "--steps", "720"])
    lines = printed()
    scales = [float(words[-1]) for words in lines]
    before, trouble = scales[:9], scales[9:12]  # printed every 50 steps, in trouble from 400 on
    assert min(before) >= 2**15
    assert max(trouble) <= 2**10
    assert scales[-1] >= 4 * min(trouble)
    skipped = 720 - len(watched.norms)
    assert skipped >= math.log2(max(before) / min(trouble))
    assert all(map(math.isfinite, watched.norms))
    assert float(lines[-1][2]) < 0.1
