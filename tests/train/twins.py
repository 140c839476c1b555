"""Runs one loop twice from one seed, bare and watched, and compares everything that remains."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.records import Event, Step
from tuimon.train.samples.governor import Governor

SEED = 3


class Diary:
    """What one run of a loop knows about itself, by arithmetic of its own.

    Called as `tuimon.watch` is; in the bare run that does nothing.

    Attributes:
        monitor: what `watch` returned; None in the bare run.
        losses: by optimizer, the newest loss of each update.
        norms: by optimizer, the L2 norm over the gradients of each update, before clipping.
    """

    def __init__(self, watch: Callable[..., tuimon.Monitor] | None) -> None:
        self._watch = watch
        self.monitor: tuimon.Monitor | None = None
        self.losses: dict[int, list[float]] = defaultdict(list)
        self.norms: dict[int, list[float]] = defaultdict(list)

    @property
    def watched(self) -> bool:
        """Whether tuimon is there in this run."""
        return self._watch is not None

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._watch is not None:
            self.monitor = self._watch(*args, **kwargs)

    def note(self, loss: torch.Tensor, params: Iterable[torch.Tensor], *, of: int = 0) -> None:
        """Just before an update, or before its clipping."""
        self.losses[of].append(float(loss.detach()))
        grads = [param.grad for param in params if param.grad is not None]
        wide = [grad.detach().to_dense().abs().double() for grad in grads]
        self.norms[of].append(math.sqrt(sum(float((grad * grad).sum()) for grad in wide)))


# Gets a diary, returns what shall be compared: objects with a state, tensors, numbers.
Loop = Callable[[Diary], list[Any]]


@dataclass(frozen=True)
class Twins:
    """Two runs of a loop that left the same numbers.

    Attributes:
        diary: of the watched run.
        steps: what it published.
        events: likewise.
    """

    diary: Diary
    steps: list[Step]
    events: list[Event]

    def of(self, optimizer: int) -> list[Step]:
        """The updates of one optimizer."""
        return [step for step in self.steps if step.optimizer == optimizer]


def twins(loop: Loop, feed: Feed) -> Twins:
    """Run `loop` bare and watched; fail unless the numbers are the same and the record is true."""
    bare, watched = Diary(None), Diary(tuimon.watch)
    left = run(loop, bare)
    with pytest.MonkeyPatch.context() as patch:
        # The governor samples now and then; here every step, so that extras meet every loop,
        # unless the loop switched them off.
        patch.setattr(Governor, "step", lambda self, *_, **__: self.stride is not None)
        right = run(loop, watched)
    assert differences(left, right) == []
    told = [event for event in feed.events if event.kind.startswith("tap-")]
    assert told == [], "a tap failed"
    assert (bare.losses, bare.norms) == (watched.losses, watched.norms)
    result = Twins(watched, feed.steps, feed.events)
    for optimizer, losses in watched.losses.items():
        steps = result.of(optimizer)
        assert [step.step for step in steps] == list(range(len(losses)))
        assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-6, nan_ok=True)
        norms = [step.grad_norm for step in steps]
        assert norms == pytest.approx(watched.norms[optimizer], rel=1e-5, abs=1e-9, nan_ok=True)
    return result


def run(loop: Loop, diary: Diary) -> dict[str, Any]:
    """Every number that a run leaves behind, with the random streams of the process."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    kept = loop(diary)
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1],
    }
    for index, thing in enumerate(kept):
        _flatten(found, str(index), thing)
    return found


def _flatten(found: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, nn.Module):
        found[f"{name}.training"] = [module.training for module in value.modules()]
        for key, param in value.named_parameters():
            found[f"{name}.{key}.grad"] = param.grad
    if isinstance(value, dict):
        for key, each in value.items():
            _flatten(found, f"{name}.{key}", each)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _flatten(found, f"{name}.{index}", each)
    elif hasattr(value, "state_dict"):
        _flatten(found, name, value.state_dict())
    else:
        found[name] = value


def differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names of the numbers that are not bit for bit the same."""
    missing = left.keys() ^ right.keys()
    return sorted(missing | {k for k in left.keys() & right.keys() if not same(left[k], right[k])})


def same(one: Any, other: Any) -> bool:
    """Bit for bit; a NaN is the same as another NaN of the same bits."""
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
            return False
        if one.device.type == "meta":
            return one.shape == other.shape
        return _bits(one) == _bits(other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return type(one) is type(other) and (one == other or repr(one) == repr(other))


def _bits(tensor: torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    plain = tensor.detach().to_dense().contiguous()
    return tuple(plain.shape), plain.view(-1).view(torch.uint8).numpy().tobytes()
