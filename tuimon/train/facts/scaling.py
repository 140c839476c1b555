"""What is called in which order around a GradScaler: counts, as facts for whoever judges them.

Told by the taps; touches neither scaler nor gradients.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

from tuimon.model.amp import AmpCalls
from tuimon.model.records import CLIP_USER
from tuimon.train.account import ClipCall, host_scale
from tuimon.train.facts.overflow import Overflows

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

# A bound of this share of the scale or more was scaled like the gradients: no mistake.
_SCALED_BOUND = 0.01
_PUBLISH_EVERY = 512


class Scaling:
    """The counts of one run. Used by the training thread only.

    Attributes:
        settings: of the first scaler that did anything; empty before.
        overflows: which gradient was the first that was not finite.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._first: dict[str, int] = {}
        self.settings: dict[str, Any] = {}
        self.overflows = Overflows()
        self._unscaled_at: dict[int, int] = {}  # id of an optimizer -> backward calls at unscale_
        self._backwards_at = observer.backward_calls
        self._scales_at = 0
        self._scaler: weakref.ref[Any] | None = None

    def on_scale(self, scaler: Any) -> None:
        """A loss was scaled."""
        if not self.settings:
            self.settings = _settings(scaler)
            self._backwards_at = self._observer.backward_calls
        self._counts["scaled"] += 1
        self._scaler = weakref.ref(scaler)

    def stray(self, track: Track) -> float | None:
        """The scale in gradients that are about to be used, where no scaler takes it back."""
        scaler = None if self._scaler is None else self._scaler()
        if scaler is None or id(track.optimizer) in self._unscaled_at:
            return None
        backwards = self._observer.backward_calls - self._backwards_at
        scaled = self._counts["scaled"] - self._scales_at
        return host_scale(scaler) if 0 < backwards <= scaled else None

    def on_unscale(self, track: Track | None, optimizer: Any, scale: float | None) -> None:
        """The script had the gradients of an optimizer unscaled."""
        self._counts["unscales"] += 1
        self._unscaled_at[id(optimizer)] = self._observer.backward_calls
        if track is not None and self._clipped(track, scale):
            self._wrong("clipped_scaled")

    def on_step(self, track: Track, *, ready: bool, scale: float | None) -> None:
        """`GradScaler.step` begins; `ready`: the gradients still carry the scale."""
        self._counts["scaler_steps"] += 1
        optimizer = track.optimizer
        unscaled_at = self._unscaled_at.pop(id(optimizer), None)
        backwards, scaled = self._since_update()
        if ready and self._clipped(track, scale):
            self._wrong("clipped_scaled")
        if unscaled_at is not None and self._observer.backward_calls > unscaled_at:
            self._wrong("backward_after_unscale")
        if backwards and not scaled:
            self._wrong("unscaled_steps")
        self._publish_sometimes(self._counts["scaler_steps"])

    def on_stepped(self, *, ran: bool) -> None:
        """`GradScaler.step` has ended; `ran`: it came to call the optimizer."""
        self._counts["optimizer_steps"] += ran

    def on_direct_step(self, track: Track) -> None:
        """An optimizer made its update past every scaler."""
        if not self.settings:
            return
        backwards, scaled = self._since_update()
        unscaled = self._unscaled_at.pop(id(track.optimizer), None) is not None
        if backwards and scaled >= backwards and not unscaled:
            self._wrong("direct_steps")
            self._publish_sometimes(self._counts["direct_steps"])

    def on_update(self) -> None:
        """`GradScaler.update` was called."""
        self._counts["updates"] += 1
        self._unscaled_at.clear()

    def publish(self) -> None:
        """Publish the counts, also for late readers."""
        if self.settings:
            record = AmpCalls(**self._counts, first=dict(self._first), **self.settings)
            self._observer.session.keep("amp-calls", record)

    def _since_update(self) -> tuple[int, int]:
        """(backward calls, scaled losses) since the newest update of anything; used up."""
        now = self._observer.backward_calls
        backwards, self._backwards_at = now - self._backwards_at, now
        scaled, self._scales_at = self._counts["scaled"] - self._scales_at, self._counts["scaled"]
        return backwards, scaled

    def _clipped(self, track: Track, scale: float | None) -> bool:
        """Whether the script has bounded gradients that carry the scale."""
        return any(
            call.mode == CLIP_USER and call.touches(track.plan.ids) and _bounds(call, scale)
            for call in self._observer.clips.calls
        )

    def _wrong(self, name: str) -> None:
        self._counts[name] += 1
        if name not in self._first:
            self._first[name] = self._observer.roster.next_step()
            self.publish()

    def _publish_sometimes(self, count: int) -> None:
        if count & (count - 1) == 0 or count % _PUBLISH_EVERY == 0:
            self.publish()


_COUNTED = (
    "scaled",
    "scaler_steps",
    "optimizer_steps",
    "direct_steps",
    "unscaled_steps",
    "unscales",
    "updates",
    "clipped_scaled",
    "backward_after_unscale",
)


def _bounds(call: ClipCall, scale: float | None) -> bool:
    if call.max_norm is None:
        return False
    if math.isinf(call.max_norm):
        return call.factor is None and call.total is None  # elements were clipped by value
    return scale is None or call.max_norm < _SCALED_BOUND * scale


def _settings(scaler: Any) -> dict[str, Any]:
    return {
        "init_scale": getattr(scaler, "_init_scale", None),
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }
