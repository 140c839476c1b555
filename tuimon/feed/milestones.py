"""Where a new pass over the data began and where a learning rate jumped, in bounded memory."""

from __future__ import annotations

from collections import deque

from tuimon.model.records import Step
from tuimon.model.units import number

EPOCH, RATE = "epoch", "rate"
MAX_MILESTONES = 512  # of each kind
HELD_STEPS = 10  # a rate that changes sooner is a schedule, which its chart shows

Milestone = tuple[int, str, str]
"""(step, kind, words)."""


class Milestones:
    """Steps of the primary optimizer in, milestones out."""

    def __init__(self) -> None:
        self._found: dict[str, deque[Milestone]] = {
            kind: deque(maxlen=MAX_MILESTONES) for kind in (EPOCH, RATE)
        }
        self._epoch: int | None = None
        self._lrs: list[float | None] = []
        self._since = 0  # step from which on `_lrs` holds
        self._all: tuple[Milestone, ...] = ()

    @property
    def all(self) -> tuple[Milestone, ...]:
        """By step; the same object until another one is found."""
        return self._all

    def see(self, record: Step) -> None:
        """Take in the newest step."""
        epoch = record.data_epoch
        if epoch is not None and epoch != self._epoch:
            if self._epoch is not None:
                self._add((record.step, EPOCH, f"epoch {epoch} begins"))
            self._epoch = epoch
        if record.lrs != self._lrs:
            if self._lrs and record.step - self._since >= HELD_STEPS:
                self._add((record.step, RATE, _change(self._lrs, record.lrs)))
            self._lrs, self._since = list(record.lrs), record.step

    def resume(self, found: list[Milestone]) -> None:
        """Begin with those of a history."""
        for each in found:
            if each[1] in self._found:
                self._add(each)

    def cut(self, step: int) -> None:
        """Forget `step` and everything after it: the run was taken up again from there."""
        for kind, kept in self._found.items():
            early = [each for each in kept if each[0] < step]
            self._found[kind] = deque(early, maxlen=MAX_MILESTONES)
        self._epoch, self._lrs, self._since = None, [], step
        self._settle()

    def _add(self, milestone: Milestone) -> None:
        self._found[milestone[1]].append(milestone)
        self._settle()

    def _settle(self) -> None:
        self._all = tuple(sorted(each for kept in self._found.values() for each in kept))


def _change(old: list[float | None], new: list[float | None]) -> str:
    """The first group that changed."""
    for group, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            name = f"learning rate of group {group}" if group else "learning rate"
            return f"{name} {number(before)} → {number(after)}"
    return "learning rates of other groups"
