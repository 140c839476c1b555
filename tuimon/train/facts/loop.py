"""Follows how a loop puts its parts together, and publishes what it finds as facts.

Told by the hooks and wrappers of the taps; touches neither gradients nor modules.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn

from tuimon.model.loop import BEGINS, MAX_NAMES, MODULE, LoopCalls, StateLoaded
from tuimon.train.facts import reach
from tuimon.train.facts.clearing import Clearing
from tuimon.train.layers import alive, unwrap
from tuimon.train.modes import apart
from tuimon.train.ranks import EARLY, EVERY, Ranks
from tuimon.train.samples.normlayers import norm_layers
from tuimon.train.stats import host_number

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

TAP = "loop"
MAX_LOADS = 24  # records about loaded state; a target network is loaded without end
NORMS_AT = frozenset((1, 4, 16, 64, 128, 256, 1024, 4096))  # updates: norm layers are told then
ROW = 2  # forwards without a graph, one after the other, that make an evaluation
ALONE = 16  # updates of other optimizers in a row: the primary one has had its day
_PARALLEL = "DistributedDataParallel"


class Loop:
    """The facts of one run. Used by the training thread only.

    Attributes:
        clearing: whether gradients are cleared between updates.
        trained: a training forward has begun since the newest primary update.
        ranks: this process beside the others of its training.
        synced: whether the newest of those announced a reduction; None without data parallelism.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.clearing = Clearing()
        self.trained = False
        self.synced: bool | None = None
        self._evaluated = False  # a forward in evaluation mode has made a graph
        self._row = 0
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._cleared: dict[int, dict[str, int]] = {}  # index of an optimizer -> its counts
        self._first: dict[str, int] = {}
        self._names: list[str] = []
        self._first_eval_update: int | None = None
        self._alone = 0  # updates since the newest primary one
        self._reached: set[int] = set()
        self._late: dict[int, str] = {}
        self.ranks = Ranks()
        self._loads = 0
        self._loaded: list[weakref.ref[nn.Module]] = []
        self._loaded_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._loaded_kinds: set[str] = set()
        guard, within = observer.boundary.guard, observer.boundary.within
        self.before_backward: Callable[..., Any] = within(TAP, self._before_backward)
        self.after_backward: Callable[..., Any] = guard(TAP, self._after_backward)
        self.at_gate: Callable[..., Any] = within(TAP, self._at_gate)
        self.after_update: Callable[..., Any] = within(TAP, self._after_update)
        self.begins: Callable[..., Any] = within(TAP, self._begins)

    # --- forwards ---------------------------------------------------------------------------------

    def on_other_forward(self, module: nn.Module) -> None:
        """A forward of a root that is no training: in evaluation mode, or without a graph."""
        if module.training:
            self._row += 1
            if self._row == ROW:
                self._counts["train_evals"] += 1
            return
        self._counts["proper_evals"] += 1
        self._evaluated = self._evaluated or torch.is_grad_enabled()

    def on_training_forward(self, module: nn.Module) -> None:
        """A training forward of a root begins."""
        self.trained = True
        self._row = 0
        self.synced = module.__dict__.get("require_backward_grad_sync")

    # --- gradients --------------------------------------------------------------------------------

    def _before_backward(self, losses: Iterable[torch.Tensor]) -> None:
        for track in self._followed():
            self.clearing.of(track).before_backward()
        step = self._observer.roster.next_step()
        if (step in reach.STEPS or self._alone == ALONE) and step not in self._reached:
            self._reached.add(step)
            self._look_at_reach(losses, step)

    def _after_backward(self) -> None:
        began_s = perf_counter()
        for track in self._followed():
            self.clearing.of(track).after_backward()
        self._observer.spent(began_s)

    def _at_gate(self, track: Track) -> None:
        marks = self.clearing.of(track)
        if not marks.backwards:
            return
        counts = self._cleared.setdefault(track.index, dict.fromkeys(_CLEARED, 0))
        counts["looked"] += 1
        clipped = any(call.touches(track.plan.ids) for call in self._observer.clips.calls)
        if found := marks.at_gate(clipped=clipped):
            if found == "uncleared":
                self._name_uncleared(track)
            self._count(found, track, counts)
        if marks.discards >= 2 and not self._inputs_need_grad():
            self._count("discarded", track, counts)

    def _after_update(self, track: Track) -> None:
        was_due = self.clearing.due
        is_primary = track.index == 0
        self._alone = 0 if is_primary else self._alone + 1
        if is_primary:
            self._end_of_primary(track)
        elif self._alone >= ALONE:
            self.clearing.plan_next(self._alone - ALONE)
        if was_due or self.clearing.due:
            self.clearing.of(track).after_update()

    def _end_of_primary(self, track: Track) -> None:
        step = track.step
        counts = self._counts
        if self.trained:
            counts["train_updates"] += 1
        elif self._evaluated:
            counts["eval_updates"] += 1
            if self._first_eval_update is None:
                self._first_eval_update = step
                self.publish()
        if self.synced is False:
            self._count("unsynced", track, counts)
        elif self.synced is None and not self.trained and self._is_parallel():
            self._count("bypassed", track, counts)
        self.trained = self._evaluated = False
        self.synced = None
        self.clearing.plan_next(step)
        number = step + 1
        if number in EARLY or number % EVERY == 0 or (self.ranks.waits and number % 8 == 0):
            self._compare_ranks(number, track)
        if number in NORMS_AT:
            self._publish_norms(step)
        if number & (number - 1) == 0:
            self.publish()

    # --- loaded state -----------------------------------------------------------------------------

    def loaded(self, record: StateLoaded, target: Any = None) -> None:
        """State was put into an object, or read from a file."""
        if record.what == MODULE and isinstance(target, nn.Module):
            self._loaded = [each for each in self._loaded if each() is not None][-16:]
            self._loaded.append(weakref.ref(target))
        elif isinstance(target, torch.optim.Optimizer):
            self._loaded_optimizers.add(target)
        else:
            self._loaded_kinds.add(record.what)
        self._loads += 1
        if self._loads <= MAX_LOADS:
            self._observer.session.publish(record)

    def _begins(self, track: Track) -> None:
        """The first update of an optimizer is about to happen."""
        optimizer = track.optimizer
        if optimizer is None:
            return
        owned = track.plan.ids
        holds = sorted(self._loaded_kinds)
        if any(not owned.isdisjoint(map(id, m.parameters())) for m in alive(self._loaded)):
            holds.append(MODULE)
        if optimizer in self._loaded_optimizers:
            holds.append("optimizer")
        if track.index == 0:
            self._compare_ranks(0, track)
        rates = [host_number(group.get("lr")) for group in optimizer.param_groups[:1]]
        self._observer.session.publish(
            StateLoaded(
                step=self._observer.roster.next_step(),
                what=BEGINS,
                optimizer=track.index,
                rate=rates[0] if rates else None,
                entries=len(optimizer.state),
                holds=holds,
                kind=type(optimizer).__name__,
            )
        )

    def _followed(self) -> list[Track]:
        """Whose gradients are followed: the primary optimizer's not where others go on alone."""
        tracks = self._observer.roster.tracks.values()
        return [each for each in tracks if self._alone < ALONE or each.index != 0]

    # --- parts ------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish the counts, also for late readers."""
        worst = max(self._cleared.values(), key=_share, default={})
        counts = {**self._counts, **worst}
        if any(counts.values()):
            self._observer.session.keep(
                "loop-calls",
                LoopCalls(
                    first=dict(self._first),
                    names=self._names,
                    first_eval_update=self._first_eval_update,
                    **counts,
                ),
            )

    def close(self) -> None:
        """At the end of the run."""
        self.publish()
        step = self._observer.session.step
        if step is not None:
            self._publish_norms(step, at_end=True)
        primary = self._observer.roster.primary
        if primary is not None and self.ranks.waits:
            self._compare_ranks(-1, primary)
        self.ranks.close()

    def _count(self, name: str, track: Track, counts: dict[str, int]) -> None:
        counts[name] += 1
        if name not in self._first:
            self._first[name] = track.step
        if counts[name] in (1, 4, 8, 16):
            self.publish()

    def _name_uncleared(self, track: Track) -> None:
        marks = self.clearing.of(track)
        if not self._names:
            grown = {id(ref()) for ref, grew in zip(marks.params, marks.grew, strict=True) if grew}
            pairs = zip(track.plan.params, track.plan.names, strict=True)
            self._names = [name for param, name in pairs if id(param) in grown][:MAX_NAMES]

    def _inputs_need_grad(self) -> bool:
        """Whether a batch is itself differentiated: its extra backwards are not the weights'."""
        return self._observer.batches.inputs_need_grad()

    def _is_parallel(self) -> bool:
        models = alive(self._observer.roster.models)
        return any(type(model).__name__ == _PARALLEL for model in models)

    def _look_at_reach(self, losses: Iterable[torch.Tensor], step: int) -> None:
        roster = self._observer.roster
        owned = {id(p): p for track in roster.tracks.values() for p in track.owned()}
        if not owned:
            return
        table = roster.layers.table
        names = {key: table.names[place] for key, place in roster.layers.place_of.items()}
        with apart():
            found = reach.reach_of(
                losses,
                step=step,
                roots=roster.roots(),
                owned=owned,
                names=names,
                late=self._late,
            )
        if found is not None:
            self._observer.session.publish(found)

    def _compare_ranks(self, number: int, track: Track) -> None:
        with apart():
            batch = self._observer.batches.newest_inputs()
            found = self.ranks.look(number, track.plan.params, batch, wrapped=self._is_parallel())
        for record in found:
            self._observer.session.publish(record)

    def _publish_norms(self, step: int, *, at_end: bool = False) -> None:
        roots = [(prefix, unwrap(model)) for prefix, model in self._observer.roster.roots()]
        record = norm_layers(roots, step)
        if record is not None:
            record = msgspec.structs.replace(record, at_end=at_end)
            self._observer.session.publish(record)


def _share(counts: dict[str, int]) -> float:
    """The share of an optimizer's updates that something was wrong with."""
    return max(counts[name] for name in _CLEARED[1:]) / max(1, counts["looked"])


_CLEARED = ("looked", "uncleared", "emptied", "unreached", "discarded")
_COUNTED = (
    "eval_updates",
    "train_updates",
    "train_evals",
    "proper_evals",
    "unsynced",
    "bypassed",
)
