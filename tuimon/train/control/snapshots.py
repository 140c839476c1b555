"""The last healthy state of a training, kept in memory that is allocated once, to go back to.

A state is healthy when the update that made it was finite and the next loss and gradients, which
follow from it, were too: until then it waits in a second slot. Kept are parameters, buffers,
optimizer state and loss scale. Learning rates, schedulers, random streams and the place in the data
go on as they are. Used by the training thread only.
"""

from __future__ import annotations

import math
import statistics
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tuimon.model.snapshots import SnapshotState
from tuimon.model.text import plain
from tuimon.model.units import size_bytes
from tuimon.train.layers import unwrap

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

SLOTS = 2  # the healthy state, and the one that still has to prove itself
MAX_SHARE = 0.5  # of the memory that is free
TELL_EVERY_S = 1.0  # a training of short steps takes many
MAX_USES = 3  # of one snapshot by the policy: what goes wrong again and again is not cured by it
_SIMPLE = (int, float, bool, str, type(None))


class Unable(Exception):
    """Why no snapshot can be taken."""


class Snapshot:
    """A copy of everything that an update changes.

    Attributes:
        step: the update after which it was taken; -1 while it is empty.
        uses: how often the training has gone back to it.
    """

    def __init__(self, available: Callable[[], int | None] | None = None) -> None:
        self.step = -1
        self._available = available or available_bytes
        self._room_bytes: float | None = None  # while copying, once more is allocated
        self.uses = 0
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []  # live, kept
        self._values: list[tuple[dict[Any, Any], dict[Any, Any]]] = []  # state of a parameter
        # Weak: an optimizer that the script gives up ends what is kept for it.
        self._owners: list[tuple[weakref.ref[Any], dict[Any, Any]]] = []  # state by parameter

    def take(self, observer: Observer, step: int) -> None:
        """Copy the state as it is, into the memory of the last time where it still fits."""
        spare = {id(live): kept for live, kept in self._tensors}
        self.step, self.uses = step, 0
        self._tensors, self._values, self._owners = [], [], []
        self._room_bytes = None
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for live in _model_tensors(observer):
                self._keep(live, spare)
            for optimizer in _optimizers(observer):
                self._take_state(optimizer, spare)

    def _take_state(self, optimizer: torch.optim.Optimizer, spare: dict[int, torch.Tensor]) -> None:
        by_owner = {}
        for owner, entries in optimizer.state.items():
            if not isinstance(entries, dict):
                raise Unable(f"{type(optimizer).__name__} keeps state of a kind of its own")
            by_owner[owner] = entries
            kept = {}
            for key, value in entries.items():
                if isinstance(value, torch.Tensor):
                    self._keep(value, spare)
                elif not isinstance(value, _SIMPLE):
                    name = plain(str(key), 40)
                    raise Unable(f"{type(optimizer).__name__} keeps {name} as something else")
                kept[key] = value
            self._values.append((entries, kept))
        self._owners.append((weakref.ref(optimizer), by_owner))

    def _keep(self, live: torch.Tensor, spare: dict[int, torch.Tensor]) -> None:
        kept = spare.get(id(live))
        if kept is None or kept.shape != live.shape or kept.dtype != live.dtype:
            self._make_room(live)
            kept = torch.empty_like(live, memory_format=torch.preserve_format)
        self._tensors.append((live, kept.copy_(live)))

    def _make_room(self, live: torch.Tensor) -> None:
        """More is to be allocated; raises Unable where memory is short."""
        if self._room_bytes is None:
            available = self._available()
            self._room_bytes = math.inf if available is None else MAX_SHARE * available
        self._room_bytes -= live.numel() * live.element_size()
        if self._room_bytes < 0:
            raise Unable(f"they would take more than {MAX_SHARE:.0%} of the memory that is free")

    @property
    def held_bytes(self) -> int:
        """Memory of the copies."""
        return sum(kept.numel() * kept.element_size() for _, kept in self._tensors)

    def renew(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy these once more: they have got their values only now."""
        known = {id(live): kept for live, kept in self._tensors}
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for live in tensors:
                if (kept := known.get(id(live))) is not None:
                    kept.copy_(live)

    def put_back(self) -> None:
        """Make the training's state what it was."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for live, kept in self._tensors:
                live.copy_(kept)
        for entries, kept_values in self._values:
            entries.clear()
            entries.update(kept_values)
        for reference, by_owner in self._owners:
            if (optimizer := reference()) is not None:
                optimizer.state.clear()
                optimizer.state.update(by_owner)
        self.uses += 1


class Snapshots:
    """When a state is copied, and when it counts as healthy.

    Attributes:
        every: updates from one copy to the next; 0 takes none.
        healthy: the state to go back to; None while there is none.
        unable: why none can be taken; "" while they can.
    """

    def __init__(
        self, observer: Observer, available: Callable[[], int | None] | None = None
    ) -> None:
        self.every = 0
        self.healthy: Snapshot | None = None
        self.unable = ""
        self._observer = observer
        self._available = available or available_bytes
        self._waiting: Snapshot | None = None
        self._spare: Snapshot | None = None
        self._told = False
        self._took_s: deque[float] = deque(maxlen=9)
        self._step_s: deque[float] = deque(maxlen=9)
        self._held_bytes: int | None = None
        self._told_state: SnapshotState | None = None
        self._told_at_s = -math.inf
        self._is_fresh = False  # the newest update was copied, and its scaler may not be through

    def after_update(self, track: Track, *, finite: bool) -> None:
        """An update of the primary optimizer is over.

        Args:
            track: whose update it was.
            finite: it was made, its loss was read as finite, and so was whatever was measured. That
                proves the state before it; for a copy its own gradients must have been measured.
        """
        self._is_fresh = False
        if self._waiting is not None:
            judged, self._waiting = self._waiting, None
            if finite:
                self.healthy, self._spare = judged, self.healthy
                self.tell()
            else:
                self._spare = judged
        measured = track.update.measured
        known = measured is not None and measured.total is not None
        if finite and known and not self.unable and track.step % self.every == 0:
            self._take(track)

    def on_new_scale(self, scaler: Any) -> None:
        """A GradScaler has ended its update, which may be the one that was copied."""
        if self._is_fresh and self._waiting is not None:
            self._waiting.renew(_scales(scaler))
        self._is_fresh = False

    def tell(self, *, at_once: bool = False) -> None:
        """Let viewers know how things stand, once a second unless something waits for it."""
        now_s = time.perf_counter()
        if not self.every or not (at_once or now_s - self._told_at_s >= TELL_EVERY_S):
            return
        state = SnapshotState(
            every=self.every,
            step=None if self.healthy is None else self.healthy.step,
            took_s=statistics.median(self._took_s) if self._took_s else None,
            held_bytes=self._held_bytes,
            step_s=statistics.median(self._step_s) if self._step_s else None,
            unable=plain(self.unable, 300),
        )
        if state != self._told_state:
            self._told_at_s, self._told_state = now_s, state
            self._observer.session.keep("snapshots", state)

    @property
    def uses(self) -> int:
        """How often the training has gone back to the state that is kept."""
        return self.healthy.uses if self.healthy is not None else 0

    @property
    def is_worn(self) -> bool:
        """Whether going back to it once more would only repeat what follows."""
        return self.uses >= MAX_USES

    def roll_back(self) -> int:
        """Go back to the healthy state; returns the update after which it was taken."""
        assert self.healthy is not None
        if self._waiting is not None:
            self._spare, self._waiting = self._waiting, None
        self.healthy.put_back()
        return self.healthy.step

    def release(self) -> None:
        """Let go of everything that belongs to the script."""
        self.healthy = self._waiting = self._spare = None

    def problem(self) -> str:
        """Why there is nothing to go back to; "" when there is."""
        if self.healthy is not None:
            return ""
        if not self.every:
            return "no snapshots are taken: start with --snapshot-every N"
        if self.unable:
            return f"no snapshot could be taken: {self.unable}"
        return "no healthy snapshot has been taken yet"

    def _take(self, track: Track) -> None:
        began_s = time.perf_counter()
        slot, self._spare = self._spare or Snapshot(self._available), None
        try:
            if not self._told:
                self._check(track)
            slot.take(self._observer, track.step)
        except Exception as error:  # a copy that fails must not cost the watch of gradients
            kind = "" if isinstance(error, Unable) else f"{type(error).__name__}: "
            self.unable = f"{kind}{error}"
            text = plain(f"none is taken: {self.unable}", 300)
            self._observer.session.event("snapshots", text, severity="warning")
            self.tell(at_once=True)
            return
        self._waiting, self._is_fresh = slot, True
        self._took_s.append(time.perf_counter() - began_s)
        self._step_s += [] if track.step_s is None else [track.step_s]
        if not self._told:
            self._told = True
            self._held_bytes = SLOTS * slot.held_bytes
            size = size_bytes(slot.held_bytes)
            text = f"every {self.every:,} updates, {SLOTS} × {size}"
            took_ms = 1e3 * self._took_s[-1]
            self._observer.session.event(
                "snapshots", text, detail=f"the first took {took_ms:.1f} ms"
            )

    def _check(self, track: Track) -> None:
        """Raises Unable where a copy would be wrong, or too large."""
        if track.late is not None:
            raise Unable("on a device the figures that call a state healthy arrive too late")
        for tensor in _model_tensors(self._observer):
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
                raise Unable(f"a {type(tensor).__name__} is no plain tensor")
            if tensor.layout is not torch.strided:
                raise Unable("a parameter is sparse")
        needed, available = SLOTS * _bytes_of(self._observer), self._available()
        if available is not None and needed > MAX_SHARE * available:
            share = f"{size_bytes(needed)} of {size_bytes(available)} free"
            raise Unable(f"they would take {share} memory")


def available_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _optimizers(observer: Observer) -> Iterator[torch.optim.Optimizer]:
    for track in observer.roster.tracks.values():
        if (optimizer := track.optimizer) is not None:
            yield optimizer


def _model_tensors(observer: Observer) -> Iterator[torch.Tensor]:
    """Parameters, buffers and loss scales, each once."""
    seen: set[int] = set()
    for tensor in _all_tensors(observer):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def _all_tensors(observer: Observer) -> Iterable[torch.Tensor]:
    for _, model in observer.roster.roots():
        root = unwrap(model)
        yield from root.parameters()
        yield from root.buffers()
    for optimizer in _optimizers(observer):
        for group in optimizer.param_groups:
            yield from group["params"]
    for scaler in list(observer.roster.scalers):
        yield from _scales(scaler)


def _scales(scaler: Any) -> Iterator[torch.Tensor]:
    for name in ("_scale", "_growth_tracker"):
        if isinstance(value := getattr(scaler, name, None), torch.Tensor):
            yield value


def _bytes_of(observer: Observer) -> int:
    state = (
        value
        for optimizer in _optimizers(observer)
        for entries in optimizer.state.values()
        if isinstance(entries, dict)
        for value in entries.values()
        if isinstance(value, torch.Tensor)
    )
    tensors = [*_model_tensors(observer), *state]
    return sum(each.numel() * each.element_size() for each in tensors)
