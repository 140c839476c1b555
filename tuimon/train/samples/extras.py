"""Sampled extras: on the steps that the governor names, looks at more than every step can pay for.

One sample covers a bounded part of the model, and parts take turns. Reads only; tensors on a
device are left out, because reading them here would make it wait.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from tuimon.model import samples
from tuimon.model.samples import (
    MAX_ACTIVATIONS,
    Activation,
    Activations,
    Histogram,
    ParameterSample,
    ParameterSamples,
    StartingWeights,
)
from tuimon.train.facts.beginning import starting_weights
from tuimon.train.samples.activations import ForwardWatch, leaf_modules
from tuimon.train.samples.governor import LONGEST_STRIDE, Governor
from tuimon.train.samples.turns import Turns

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

BUDGET_FRAC = 0.005
EVERY_STEPS = 50  # the longest stride when activations were asked for
MODULES = 64  # whose outputs are looked at in one sample, unless activations were asked for
MAX_REMEMBERED = 4096  # modules whose newest sample is kept for who asks
TAP = "extras"

_Sampled = ParameterSamples | StartingWeights | Activations | Histogram


class Extras:
    """What is sampled and when. Used by the training thread only.

    Attributes:
        armed: the update that comes next is sampled.
        governor: when, and what it cost.
        on_samples: told the step and what a sample found of parameters.
        seen: module -> (step, what its outputs were like when it was sampled last).
    """

    def __init__(self, observer: Observer, clock: Callable[[], float] = time.perf_counter) -> None:
        self.governor = Governor(BUDGET_FRAC)
        self.armed = False
        self.on_samples: Callable[[int, list[ParameterSample]], None] | None = None
        self.seen: dict[str, tuple[int, Activation]] = {}
        self._observer = observer
        self._clock = clock
        self._activations: bool | None = None
        self._turns: dict[int, Turns] = {}
        self._watches: dict[int, ForwardWatch] = {}
        self._turn = 0
        self._sample_s = 0.0  # cost of the sample that is being taken
        self._interval_s = 0.0  # cost since the newest update of the primary optimizer
        self._sampled_any = False
        self._left_out: Counter[str] = Counter()
        self._said: set[str] = set()
        self.starting: StartingWeights | None = None
        self._begun: set[int] = set()  # optimizers whose running update was looked at before it
        guard = observer.boundary.guard
        self._guard = functools.partial(guard, TAP)
        within = observer.boundary.within
        self.before_forward = within(TAP, self._before_forward)
        self.before_update = within(TAP, self._before_update)
        self.after_update = within(TAP, self._after_update)
        self.begin = within(TAP, self._begin)

    def configure(self, budget_frac: float, activations: bool | None) -> None:
        """Take over what `watch` was given; the newest call counts.

        Args:
            budget_frac: share of step time; 0 for no extras at all.
            activations: None when the governor pays for them, False never, True at least every
                `EVERY_STEPS` steps.
        """
        longest = EVERY_STEPS if activations else LONGEST_STRIDE
        old = self.governor
        if (budget_frac, longest) != (old.budget_frac, old.longest):
            self.governor = Governor(budget_frac, longest=longest)
            self.stop()
        self._activations = activations
        if self.governor.stride is None:
            self._publish_governor(None)

    def start_over(self) -> None:
        """Begin anew for another run."""
        self.stop()
        self.governor = Governor(self.governor.budget_frac, longest=self.governor.longest)
        self._turns.clear()
        self._said.clear()
        self.seen.clear()
        self.on_samples = None
        self.starting = None

    def stop(self) -> None:
        """Drop a sample that is being taken; no hook of it stays."""
        self.armed = False
        for watch in self._watches.values():
            watch.take_off()
        self._watches.clear()
        for turns in self._turns.values():
            turns.drop()
        self._begun.clear()

    def take_off(self) -> None:
        """No hook of a sample stays on the modules; what it has measured so far stays."""
        for watch in self._watches.values():
            watch.take_off()

    # --- the places in a step ---------------------------------------------------------------------

    def _before_forward(self, root: nn.Module) -> None:
        """A training forward of a root begins, in a step that is sampled."""
        if self._activations is False or id(root) in self._watches:
            return
        if torch._C._get_tracing_state() is not None:
            return
        began_s = self._clock()
        watch = self._watches[id(root)] = ForwardWatch(self._clock, self._guard)
        prefix = next((p for p, model in self._observer.roster.roots() if model is root), "")
        found = leaf_modules(root, watch.left_out)
        if found:
            chosen, drawn = self._choose(prefix, found)
            watch.put_on(root, chosen, step=self._observer.roster.next_step(), drawn=drawn)
        watch.spent_s += self._clock() - began_s

    def _begin(self, track: Track) -> None:
        """The first update of an optimizer is about to happen."""
        if track.index or self.governor.stride is None:
            return
        began_s = self._clock()
        with torch.no_grad():
            pairs = zip(track.plan.names, track.plan.params, strict=True)
            found = starting_weights(pairs, self._observer.roster.roots())
        if found is not None:
            self.starting = found
            self._publish(found)
        self._observer.times.cost_s += self._clock() - began_s

    def _before_update(self, track: Track, divisor: float | None) -> None:
        """The gradients of an update are final, in a step that is sampled."""
        turns = self._turns.setdefault(track.index, Turns())
        if turns.waiting:  # a closure is evaluated again; the weights before it are known
            return
        self._collect_hooks()
        self._begun.add(track.index)
        began_s = self._clock()
        with torch.no_grad():
            turns.before(track.plan, track.step, track.update.calls, divisor)
        if turns.foreign:
            self._say("parameters outside host memory are not sampled")
        self.pay(self._clock() - began_s)

    def _after_update(self, track: Track, step: int, step_s: float | None, *state: bool) -> None:
        """An update was attempted.

        Args:
            track: of the optimizer.
            step: index of the update.
            step_s: time since the one before, without waits.
            state: whether it changed the weights; whether something in it was not finite.
        """
        updated, suspicious = state
        primary = track.index == 0
        if not (self.armed or self._interval_s or track.index in self._begun):
            if primary:
                self.armed = self.governor.step(step_s, suspicious=suspicious)
            return
        if self.armed:
            self._collect_hooks()
        began_s = self._clock()
        if primary and self._interval_s:
            step_s = None if step_s is None else max(0.0, step_s - self._interval_s)
            self._interval_s = 0.0
        self._begun.discard(track.index)
        turns = self._turns.get(track.index)
        if turns is not None and turns.waiting:
            with torch.no_grad():
                items = turns.after(track.plan, step, updated=updated)
            if items:
                self._sampled_any = True
                self._publish(ParameterSamples(step, track.index, items))
                if self.on_samples is not None:
                    self.on_samples(step, items)
            for histogram in turns.histograms:
                self._publish(histogram)
            turns.drop()
        if not primary:
            if self.armed:
                self.pay(self._clock() - began_s)
            return
        if self.armed:
            self._end_sample(step, began_s)
        self.armed = self.governor.step(step_s, suspicious=suspicious)

    # --- parts ------------------------------------------------------------------------------------

    def _end_sample(self, step: int, began_s: float) -> None:
        items: list[Activation] = []
        left_out: Counter[str] = Counter()
        for watch in self._watches.values():
            watch.take_off()
            items += watch.activations()
            left_out += watch.left_out
            if watch.histogram is not None:
                self._publish(watch.histogram)
        self._watches.clear()
        self._sampled_any |= bool(items)
        if items or left_out:
            self._publish(Activations(step, items[:MAX_ACTIVATIONS], dict(left_out)))
            self._remember(step, items)
        self.pay(self._clock() - began_s)
        if self._sampled_any:
            self.governor.sampled(self._sample_s)
        else:
            self.governor.rest()
        self._sample_s, self._sampled_any = 0.0, False
        self._publish_governor(step)

    def _remember(self, step: int, items: list[Activation]) -> None:
        for item in items:
            if item.module in self.seen or len(self.seen) < MAX_REMEMBERED:
                self.seen[item.module] = step, item

    def _publish(self, record: _Sampled) -> None:
        self._observer.session.publish(record)

    def _publish_governor(self, step: int | None) -> None:
        governor = self.governor
        note = ""
        if governor.stride is None:
            note = "switched off"
        elif step is not None and governor.cost_s is None:
            note = "nothing can be sampled"
        elif governor.is_over_budget:
            note = "one sample costs more than its budget"
        record = samples.Governor(
            step, governor.stride, governor.share_frac, governor.budget_frac, note
        )
        self._observer.session.keep("governor", record)

    def _choose(
        self, prefix: str, found: list[tuple[str, nn.Module]]
    ) -> tuple[list[tuple[str, nn.Module]], str]:
        """(the modules whose turn it is by name, the one whose histogram is taken)."""
        count = min(len(found), MAX_ACTIVATIONS if self._activations else MODULES)
        portions = -(-len(found) // count)
        at = self._turn % portions * count
        chosen = [
            ((prefix + path).rstrip("."), module)
            for path, module in (found[at:] + found[:at])[:count]
        ]
        drawn = chosen[self._turn // portions % count][0]
        self._turn += 1
        return chosen, drawn

    def _collect_hooks(self) -> None:
        """Account for what the hooks of a forward have cost."""
        for watch in self._watches.values():
            self.pay(watch.spent_s)
            self._observer.times.cost_s += watch.spent_s
            watch.spent_s = 0.0

    def pay(self, seconds: float) -> None:
        """Account for a look at the step that is sampled, whoever takes it."""
        self._sample_s += seconds
        self._interval_s += seconds

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._observer.session.event("extras", text)
