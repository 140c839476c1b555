"""Sees the batch: inputs at the root module's forward, targets in the graph of the loss.

Keeps weak references only, so that a batch lives exactly as long as without tuimon. Looks at the
first batches, at those of sampled steps, and at those whose loss is not finite.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.graphs import GraphSeen
from tuimon.model.records import MAX_INPUTS, Batch
from tuimon.train.facts.graphlook import look_at_graph
from tuimon.train.facts.lossgraph import losses_below
from tuimon.train.facts.passes import Passes
from tuimon.train.leaves import NAMES, PLAIN, Leaf, leaves_of
from tuimon.train.modes import apart
from tuimon.train.samples.summary import summarise

if TYPE_CHECKING:
    from tuimon.train.observer import Observer

FIRST_BATCHES = 3
FIRST_ELEMENTS = 1 << 18  # of each tensor, in the first batches and in suspicious ones
SAMPLE_ELEMENTS = 1 << 14  # of each tensor, later
MAX_SUSPICIONS = 16  # losses that turn bad after good ones
MAX_FACTS = 16  # changes of what is known of the losses

TAP = "batch"
FIRST, SAMPLE, SUSPICION, JUMP = "first", "sample", "suspicion", "jump"
MAX_JUMPS = 8
JUMPED = 8.0  # times the largest loss of late
SETTLED = 16  # losses before any is called a jump
FADING = 0.98  # what is left of the largest loss from one backward to the next

_Held = list[tuple[str, weakref.ref[torch.Tensor]]]


class Batches:
    """What the training is fed with. Used by the training thread only.

    `_held` maps the id of a root module to its newest inputs.

    Attributes:
        was_bad: the loss of the newest backward was not finite.
        due: why the batch of the coming update is looked at; "" when it is not.
    """

    def __init__(self, observer: Observer) -> None:
        self.passes = Passes()
        self._observer = observer
        self._held: dict[int, _Held] = {}
        self._looked = 0
        self._suspicions = 0
        self.was_bad = False
        self._step: int | None = None  # the one that the following speak of
        self.due = ""
        self._inputs: list[TensorSummary] = []
        self._left_out = 0
        self._seen: set[int] = set()  # root modules whose inputs are in `_inputs`
        self._loss_facts: list[LossFacts] = []
        self._facts_said = 0
        self._graph_seen = False
        self._losses = self._jumps = 0
        self._top = 0.0
        guard = observer.boundary.guard
        within = observer.boundary.within
        self.on_forward = within(TAP, self._enter)
        self.on_loss = within(TAP, self._meet_loss)
        self.on_bad_gradients = within(TAP, self._suspect_inputs)
        self.flush = guard(TAP, self._flush)

    def inputs_need_grad(self) -> bool:
        """Whether what the newest forwards were called with is itself differentiated."""
        return any(tensor.requires_grad for tensor in self.newest_inputs())

    def newest_inputs(self) -> list[torch.Tensor]:
        """What the newest forwards were called with, as far as it still lives."""
        held = [ref() for inputs in self._held.values() for _, ref in inputs]
        return [tensor for tensor in held if tensor is not None]

    def _enter(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A training forward of a root module begins."""
        step = self._observer.roster.next_step()
        if step != self._step:
            self._begin(step)
        passes = self.passes
        follows = passes.newest is not None or passes.current is not None
        plain = not kwargs and len(args) <= len(NAMES) and PLAIN.issuperset(map(type, args))
        if plain and not (self.due or follows):
            self._held[id(module)] = [*zip(NAMES, map(weakref.ref, args), strict=False)]
            return
        found, left_out = leaves_of(args, kwargs, MAX_INPUTS)
        self._held[id(module)] = [(name, weakref.ref(tensor)) for name, tensor in found]
        if follows:
            passes.used(found)
        if self.due and id(module) not in self._seen:
            began_s = perf_counter()
            self._seen.add(id(module))
            self._left_out += left_out
            self._look(found)
            if self.due == SAMPLE:
                self._observer.extras.pay(perf_counter() - began_s)

    def jumps(self, loss: float) -> bool:
        """Whether a finite loss lies far above those of late."""
        size = abs(loss)
        self._losses += 1
        is_far = size > JUMPED * self._top and self._losses > SETTLED
        self._top = max(size, FADING * self._top)
        if is_far:
            self._jumps += 1
        return is_far and self._jumps <= MAX_JUMPS

    def _meet_loss(
        self, losses: Iterable[torch.Tensor], suspicious: bool, jumped: bool = False
    ) -> None:
        """A backward is about to begin: publish what its batch looks like, where that is due."""
        fresh, self.was_bad = suspicious and not self.was_bad, suspicious
        if (fresh or jumped) and self.due != FIRST:
            self._suspect(SUSPICION if fresh else JUMP)
        if not self.due:
            return
        began_s = perf_counter()
        graph: GraphSeen | None = None
        with apart():
            seen = losses_below(losses, self._limit())
            if not self._graph_seen:
                self._graph_seen = True
                graph = look_at_graph(losses, self._name_of)
        is_sample = self.due == SAMPLE
        self._publish(seen, graph)
        self._learn([loss.facts for loss in seen])
        if is_sample:
            self._observer.extras.pay(perf_counter() - began_s)

    def _suspect_inputs(self) -> None:
        """The gradients are not finite although the loss is: look at what led to them."""
        if not self.due:
            self._suspect()
            if self.due:
                self._publish([])

    def _flush(self) -> None:
        """Publish what no backward followed."""
        if self.due and self._inputs:
            self._publish([])

    def _begin(self, step: int) -> None:
        """The first forward that leads to another update."""
        if self.due:
            self._flush()
        self._step = step
        self._held.clear()
        first = self._looked < FIRST_BATCHES
        self.due = FIRST if first else SAMPLE if self._observer.extras.armed else ""
        if self.due:
            self._inputs, self._seen, self._left_out = [], set(), 0

    def _suspect(self, why: str = SUSPICION) -> None:
        if why == SUSPICION:
            self._suspicions += 1
        if self._suspicions > MAX_SUSPICIONS:
            return
        self._step, self.due = self._observer.roster.next_step(), why
        self._inputs, self._left_out = [], 0
        for held in self._held.values():
            self._look([(name, known) for name, ref in held if (known := ref()) is not None])

    def _limit(self) -> int:
        return SAMPLE_ELEMENTS if self.due == SAMPLE else FIRST_ELEMENTS

    def _look(self, leaves: Iterable[Leaf]) -> None:
        limit = self._limit()
        with apart():
            for name, tensor in leaves:
                if len(self._inputs) < MAX_INPUTS:
                    self._inputs.append(summarise(name, tensor, limit))
                else:
                    self._left_out += 1

    def _name_of(self, param: torch.Tensor) -> str:
        layers = self._observer.roster.layers
        place = layers.place_of.get(id(param))
        return layers.table.names[place] if place is not None else f"a {tuple(param.shape)} weight"

    def _publish(self, losses: list[LossSeen], graph: GraphSeen | None = None) -> None:
        epoch, batch = self.passes.place
        current = self.passes.current
        self._observer.session.publish(
            Batch(
                step=self._step or 0,
                time_ns=time.time_ns(),
                why=self.due,
                inputs=self._inputs,
                losses=losses,
                data_epoch=epoch,
                batch_index=batch,
                batches_per_epoch=None if current is None else current.batches,
                left_out=self._left_out,
                graph=graph,
            )
        )
        self._looked += 1
        self.due = ""
        self._inputs = []

    def _learn(self, losses: list[LossFacts]) -> None:
        """Tell what is known of the losses and the length of an epoch, when that is new."""
        roster = self._observer.roster
        current = self.passes.current
        batches = roster.batches_per_epoch if current is None else current.batches
        new = [facts for facts in losses if facts not in roster.losses]
        if self._facts_said >= MAX_FACTS or not (new or batches != roster.batches_per_epoch):
            return
        self._facts_said += 1
        roster.losses = roster.losses + new
        roster.batches_per_epoch = batches
        if roster.primary is not None:
            roster.publish_facts()
