"""Tests what a training began with: its first update from new weights, with one thing changed.

The weights are drawn again with the spread that they began with; that is the placebo. A cause is
confirmed where the first update from there raises the loss of its batch, and where it lowers it
with the batch standardised, or with the spread that modules draw by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch

from tuimon.diagnose.rules.scales import FAR_INPUT, LARGE_GAIN
from tuimon.model.samples import StartingWeights
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE
from tuimon.model.units import number
from tuimon.train.autopsy import looks
from tuimon.train.autopsy.names import Names
from tuimon.train.trials.changes import Change, Collected, Setting
from tuimon.train.trials.clocking import Clock, Trial
from tuimon.train.trials.judging import Judgement
from tuimon.train.trials.overshooting import RISE, Moved, updated
from tuimon.train.trials.replaying import Outcome, Roots

STANDARDISED = "the training began anew, with its batch standardised"
DEFAULT = "the training began anew, with weights of the spread that their modules draw by default"
_SEED = 0  # the same weights in each replay of a trial


class Begun(NamedTuple):
    """A parameter before the first update.

    Attributes:
        rms: of its elements.
        gain: how much it multiplies the size of its input.
        is_constant: all of its elements are one number.
    """

    rms: float
    gain: float
    is_constant: bool


def begun_of(record: StartingWeights) -> dict[str, Begun]:
    """The weights of a record by name."""
    columns = [np.frombuffer(each, "<f4").tolist() for each in (record.rms, record.spread)]
    rows = zip(record.names, record.fan_in, *columns, strict=True)
    return {
        name: Begun(rms, rms * math.sqrt(fan_in), spread == 0)
        for name, fan_in, rms, spread in rows
        if math.isfinite(rms)
    }


class Beginning(NamedTuple):
    """What is needed to begin a training anew.

    Attributes:
        optimizer: read only; None where none is known yet.
        roots: (prefix of its names, module) of all models.
        play: replays the step with a change.
        batch: samples along the first axis.
        begun: parameters by name.
    """

    optimizer: torch.optim.Optimizer | None
    roots: Roots
    play: Callable[[Change], Outcome]
    batch: int
    begun: Mapping[str, Begun]


class Redrawn(Change):
    """Weights are drawn again.

    Attributes:
        values: what came of that, by name.
    """

    def __init__(self, begun: Mapping[str, Begun], *, by_default: bool) -> None:
        super().__init__()
        self.words = DEFAULT if by_default else "weights were drawn again as they began"
        self.values: dict[str, torch.Tensor] = {}
        self._begun = begun
        self._by_default = by_default

    def prepare(self, names: Names) -> None:
        devices = {p.device.index for p in names.parameters.values() if p.device.type == "cuda"}
        with looks.apart(), torch.random.fork_rng([each for each in devices if each is not None]):
            torch.manual_seed(_SEED)
            for module in names.modules.values():
                if type(module).__module__.startswith("torch.nn."):
                    getattr(module, "reset_parameters", lambda: None)()
            known = _kept_by_torch(names)
            for name, param in names.parameters.items():
                began = self._begun.get(name)
                if began is not None and param.dim() >= 2:
                    self._draw(param, began, is_known=id(param) in known)
                    self.count += 1
            self.values = {name: p.detach().clone() for name, p in names.parameters.items()}

    def _draw(self, param: torch.Tensor, began: Begun, *, is_known: bool) -> None:
        if not self._by_default:
            if began.is_constant:
                param.data.fill_(began.rms)
            else:
                param.data.normal_(0.0, began.rms)
        elif not is_known and began.gain > 0:
            param.data.normal_(0.0, began.rms / began.gain)


class Standardised(Change):
    """Numbers of the batch that lie far from order 1 are brought to it, feature by feature."""

    words = STANDARDISED

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = batch

    def data(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_floating_point or not tensor.dim() or tensor.numel() < 2:
            return tensor
        if tensor.shape[0] != self._batch or not bool(torch.isfinite(tensor).all()):
            return tensor
        values = tensor.double()
        middle, spread = values.mean(), values.std(correction=0)
        if float(values.abs().max()) < FAR_INPUT:
            return tensor
        if float(torch.maximum(middle.abs(), spread)) < FAR_INPUT / 4:
            return tensor
        if tensor.dim() == 2 and tensor.shape[0] > 1:
            middle, spread = values.mean(0), values.std(0, correction=0)
        self.count += 1
        return ((values - middle) / torch.where(spread > 0, spread, 1.0)).to(tensor.dtype)


class Together(Change):
    """Several changes, each where it has something to change."""

    def __init__(self, *parts: Change) -> None:
        super().__init__()
        self._parts = parts

    def begin(self) -> None:
        for part in self._parts:
            part.begin()

    def data(self, tensor: torch.Tensor) -> torch.Tensor:
        for part in self._parts:
            tensor = part.data(tensor)
        return tensor

    def prepare(self, names: Names) -> None:
        for part in self._parts:
            part.prepare(names)

    def gradient(self, name: str, value: torch.Tensor) -> None:
        for part in self._parts:
            part.gradient(name, value)

    def mode(self, setting: Setting) -> AbstractContextManager[Any]:
        stack = ExitStack()
        for part in self._parts:
            stack.enter_context(part.mode(setting))
        return stack


def restart_trials(beginning: Beginning, clock: Clock) -> Iterator[tuple[str, Trial]]:
    """Trials of what a growing loss began with: (cause, trial)."""
    drawn = Redrawn(beginning.begun, by_default=False)
    raw = _first_update(beginning, drawn, Change(), clock)
    if raw is None or not _rises(raw):
        return
    way = f"the first update takes the loss of its batch {_way(raw)} as the training began"
    standardised = Standardised(beginning.batch)
    found = _first_update(beginning, drawn, standardised, clock)
    if found is not None and standardised.count:
        yield "data-scale", _told(STANDARDISED, way, found)
    if any(each.gain >= LARGE_GAIN for each in beginning.begun.values()):
        redrawn = Redrawn(beginning.begun, by_default=True)
        found = _first_update(beginning, redrawn, Change(), clock)
        if found is not None:
            yield "bad-init", _told(DEFAULT, way, found)


def overflow_trials(beginning: Beginning, clock: Clock) -> Iterator[tuple[str, Trial]]:
    """Likewise, where nothing was finite before any update was made."""

    def is_sound(change: Change) -> bool:
        return not clock.spent() and clock.timed(lambda: beginning.play(change)).is_sound

    if not clock.timed(lambda: beginning.play(Redrawn(beginning.begun, by_default=False))).is_bad:
        return
    way = "with other weights of the same spread the first step is as bad"
    standardised = Standardised(beginning.batch)
    if is_sound(standardised) and standardised.count:
        yield "data-scale", Trial(STANDARDISED, Judgement(CONFIRMED, f"{way}; so it is finite"))
    if any(each.gain >= LARGE_GAIN for each in beginning.begun.values()):
        heals = is_sound(Redrawn(beginning.begun, by_default=True))
        detail = f"{way}; so it is {'finite' if heals else 'no better'}"
        yield "bad-init", Trial(DEFAULT, Judgement(CONFIRMED if heals else NO_DIFFERENCE, detail))


def _first_update(
    beginning: Beginning, drawn: Redrawn, change: Change, clock: Clock
) -> tuple[float, float] | None:
    """The loss of the batch before and after an update of an optimizer that has no state yet."""
    if clock.spent():
        return None
    kept = Collected()
    before = clock.timed(lambda: beginning.play(Together(drawn, change, kept)))
    if before.problem or before.loss is None:
        return None
    if not before.is_sound:
        return math.inf, math.inf
    assert beginning.optimizer is not None
    values = updated(beginning.optimizer, beginning.roots, drawn.values, kept.gradients, clock)
    if not values or clock.spent():
        return None
    after = clock.timed(lambda: beginning.play(Together(drawn, Moved(values), change)))
    if after.problem or after.loss is None:
        return None
    return before.loss, after.loss if math.isfinite(after.loss) else math.inf


def _told(words: str, way: str, found: tuple[float, float]) -> Trial:
    heals = not _rises(found)
    detail = f"{way}; {_way(found)} so"
    return Trial(words, Judgement(CONFIRMED if heals else NO_DIFFERENCE, detail))


def _rises(found: tuple[float, float]) -> bool:
    before, after = found
    return not math.isfinite(after) or after > before + RISE * abs(before)


def _way(found: tuple[float, float]) -> str:
    return f"{number(found[0])} → {number(found[1])}"


def _kept_by_torch(names: Names) -> set[int]:
    """Parameters of modules that draw them again by themselves."""
    return {
        id(param)
        for module in names.modules.values()
        if type(module).__module__.startswith("torch.nn.") and hasattr(module, "reset_parameters")
        for param in module._parameters.values()
        if param is not None
    }
