"""Optimizers that step inside backward, one for each parameter: their steps make up one update.

Gathers what each inner step sees, while its gradient is there, and publishes one record for all of
them when the backward is over. Used by the training thread; on a device, hooks of a backward run
in threads of the engine, which nothing here reads anything for.
"""

from __future__ import annotations

import math
from threading import get_ident
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tuimon.model.records import MAX_BAD, NO_GRAD
from tuimon.train.stats import Flags, Floats, Measured, Plan, measure

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

HOW_COUNTED = "optimizers step inside backward: one backward is one step, weights included"


class Inside:
    """The inner steps of the backward that runs, and who has ever taken one.

    Attributes:
        lead: the track that stands for all of them in the records; None without such steps.
        waiting: steps were taken that no record speaks of yet.
        plan: all their parameters; dropped when an optimizer is gone, lest they live on here.
    """

    def __init__(self, observer: Observer) -> None:
        self.lead: Track | None = None
        self.waiting = False
        self._observer = observer
        self._members: dict[int, Track] = {}
        self._met: dict[int, Measured | None] = {}  # id of a track -> what its step saw
        self.plan: Plan | None = None
        self._rows: dict[int, npt.NDArray[np.int64]] = {}  # id of a track -> its places in the plan
        self._epoch: int | None = None
        self._waited_s = 0.0

    def start_over(self) -> None:
        """Begin anew for another run, or when nothing is watched any more."""
        self.lead = None
        self.waiting = False
        self._members.clear()
        self._met.clear()
        self._waited_s = 0.0
        self._rows.clear()
        self.plan = None

    def before(self, track: Track) -> None:
        """A step is about to happen inside backward."""
        observer = self._observer
        if observer.current is not None or observer.scaling is not None:
            return  # the backward itself runs inside a step, which is the update
        if track.late is None:
            observer.thread = get_ident()
        if id(track) not in self._members:
            self._members[id(track)] = track
            self.plan = None
        track.keep_up()
        self.waiting = True
        self._met[id(track)] = None
        lead = self.lead or track
        if track.late is None and lead.step % lead.check_every == 0:
            spied = observer.clips.norms or None
            self._met[id(track)] = measure(track.plan, spied=spied, exact=len(self._met) < MAX_BAD)

    def conclude(self) -> None:
        """The backward is over: publish its inner steps as one update, then do what was asked."""
        observer = self._observer
        self.waiting = False
        lead = self._follow()
        if lead is None:
            self._met.clear()
            return
        merged = self._merged()
        self._met.clear()
        assert self.plan is not None
        lead.conclude(self.plan, merged, waited_s=self._waited_s)
        observer.clips.clear()
        self._waited_s = 0.0
        observer.gate.promises.place = 2 * lead.step + 1
        if observer.gate.busy:
            self._waited_s = observer.gate.at_gate(lead)

    def leave(self, track: Track) -> None:
        """`track` steps outside backward after all: it counts by itself."""
        if track is not self.lead and self._members.pop(id(track), None) is not None:
            track.index = self._observer.roster.free_index()
            self.plan = None

    def _follow(self) -> Track | None:
        """The lead; all members go by its number, and the layer table says so."""
        alive = {key: track for key, track in self._members.items() if track.optimizer is not None}
        if len(alive) < len(self._members):
            self._members, self.plan = alive, None
        if self.lead is None or self.lead.optimizer is None:
            self.lead = next((alive[key] for key in self._met if key in alive), None)
            if self.lead is None:
                return None
            self.lead.elect()
            self._observer.session.event("inside-backward", HOW_COUNTED)
            self.plan = None
        roster = self._observer.roster
        if self.plan is None or self._epoch != roster.layers.table.epoch:
            for track in alive.values():
                track.index = self.lead.index
            roster.renew_layers()
            roster.publish_facts()
            self._make_plan(list(alive.values()))
        return self.lead

    def _make_plan(self, tracks: list[Track]) -> None:
        table = self._observer.roster.layers.table
        rows = sorted(
            (int(place), name, param)
            for track in tracks
            for place, name, param in zip(
                track.plan.places, track.plan.names, track.plan.params, strict=True
            )
        )
        places = [place for place, _, _ in rows]
        self.plan = Plan(
            [param for _, _, param in rows], [name for _, name, _ in rows], places, len(table.names)
        )
        position = {place: index for index, place in enumerate(places)}
        self._rows = {
            id(track): np.array([position[int(place)] for place in track.plan.places], np.int64)
            for track in tracks
        }
        self._epoch = table.epoch

    def _merged(self) -> Measured | None:
        """What all inner steps saw; None when none of them was measured."""
        assert self.plan is not None
        count = len(self.plan.params)
        norms: Floats = np.full(count, np.nan, np.float32)
        flags: Flags = np.full(count, NO_GRAD, np.uint8)
        merged = Measured(b"", flags)
        squares = []
        for key, measured in self._met.items():
            rows = self._rows.get(key)
            if measured is None or rows is None or len(rows) != len(measured.norms):
                continue
            norms[rows] = measured.norms
            flags[rows] = 0 if measured.flags is None else measured.flags
            if measured.total is not None:
                squares.append(measured.total * measured.total)
            merged.bad += measured.bad[: MAX_BAD - len(merged.bad)]
            merged.bad_total += measured.bad_total
        if all(measured is None for measured in self._met.values()):
            return None
        merged.wire = norms.tobytes()
        merged.total = math.sqrt(sum(squares)) if squares else None
        if not flags.any():
            merged.flags = None
        return merged
