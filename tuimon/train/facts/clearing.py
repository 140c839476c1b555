"""Whether gradients are cleared between two updates, told by identity and version of the gradients.

Nothing is patched and no device is waited for: a gradient that is the same object in the same
version before a backward as after the last update has not been cleared. Reads only.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from tuimon.train.stats import Plan

if TYPE_CHECKING:
    from tuimon.train.track import Track

PROBES = 8  # parameters of one optimizer that are followed
FIRST_UPDATES = 64  # all of these are looked at, later one in `STRIDE`
STRIDE = 16
MAX_READ = 4096  # elements that are asked whether they are 0

_Mark = tuple[int, int] | None  # id and version of a gradient


class Marks:
    """The gradients of some parameters of one optimizer, from the end of one update to the next.

    Attributes:
        plan: whose parameters these are, weak: it holds them.
        params: the followed ones.
        backwards: backward calls since the newest update.
        had: which had a gradient after the newest of them.
        grew: to which gradients that an update had used already, something was added.
        discards: how often gradients of this update were thrown away before its last backward.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = weakref.ref(plan)
        trained = [param for param in plan.params if param.requires_grad]
        every = max(1, len(trained) // PROBES)
        self.params = [weakref.ref(param) for param in trained[::every][:PROBES]]
        count = len(self.params)
        self._marks: list[_Mark] = [None] * count
        self._carried = [False] * count
        self.had = [False] * count
        self.grew = [False] * count
        self._live = False
        self.backwards = self.discards = 0

    def before_backward(self) -> None:
        """A backward is about to add to the gradients."""
        gone = kept = 0
        for place, reference in enumerate(self.params):
            grad = _grad(reference)
            now = _mark(grad)
            if self._carried[place]:
                still = now == self._marks[place] and _has_value(grad)
                self._carried[place] = still
                # What another loss had left there is cleared before its own is added.
                self.grew[place] = self.grew[place] and still
            elif self.had[place]:
                is_gone = grad is None or (now != self._marks[place] and not _has_value(grad))
                gone, kept = gone + is_gone, kept + (not is_gone)
            self._marks[place] = now
        if gone and not kept:
            self.discards += 1

    def after_backward(self) -> None:
        """A backward has ended."""
        self.backwards += 1
        self._live = False
        for place, reference in enumerate(self.params):
            grad = _grad(reference)
            now = _mark(grad)
            if self._carried[place] and now != self._marks[place]:
                self.grew[place] = True
            self._marks[place] = now
            self.had[place] = grad is not None
            self._live = self._live or _has_value(grad)

    def at_gate(self, *, clipped: bool) -> str:
        """What became of the gradients by the time of their update; "" for nothing unusual.

        Args:
            clipped: a clipping has changed them, which may have left nothing of them.
        """
        if not self.backwards or not self.params:
            return ""
        if any(self.grew):
            return "uncleared"
        grads = [_grad(reference) for reference in self.params]
        if not any(self.had):
            return "unreached" if all(grad is None for grad in grads) else ""
        if all(grad is None for grad in grads):
            return "emptied"
        touched = all(_mark(g) != mark for g, mark in zip(grads, self._marks, strict=True) if mark)
        if self._live and touched and not clipped and not any(map(_has_value, grads)):
            return "emptied"
        return ""

    def after_update(self) -> None:
        """The update has happened: what lies in the gradients now has been used."""
        for place, reference in enumerate(self.params):
            grad = _grad(reference)
            self._marks[place] = _mark(grad)
            self._carried[place] = grad is not None
            self.had[place] = self.grew[place] = False
        self.backwards = self.discards = 0


class Clearing:
    """Follows all watched optimizers. Used by the training thread only.

    Attributes:
        due: the update that comes next is looked at.
    """

    def __init__(self) -> None:
        self.due = True
        self._marks: weakref.WeakKeyDictionary[Track, Marks] = weakref.WeakKeyDictionary()

    def of(self, track: Track) -> Marks:
        """The marks of a track, made anew where its parameters have changed."""
        marks = self._marks.get(track)
        if marks is None or marks.plan() is not track.plan:
            marks = self._marks[track] = Marks(track.plan)
        return marks

    def plan_next(self, step: int) -> bool:
        """After the primary update `step`: whether marks have to be set for the next one."""
        self.due = step + 1 < FIRST_UPDATES or (step + 1) % STRIDE == 0
        return self.due


def _grad(reference: weakref.ref[torch.Tensor]) -> torch.Tensor | None:
    param = reference()
    return None if param is None else param.grad


def _mark(grad: torch.Tensor | None) -> _Mark:
    return None if grad is None else (id(grad), grad._version)


def _has_value(grad: torch.Tensor | None) -> bool:
    """Whether a gradient is not 0; of one on a device that is taken for granted."""
    if type(grad) is not torch.Tensor or grad.layout is not torch.strided:
        return False  # a class of the script's is asked nothing
    if not _is_on_host(grad):
        return grad.device.type != "meta"
    return bool(grad.detach().reshape(-1)[:MAX_READ].any())


def _is_on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"
