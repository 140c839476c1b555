"""Listens to `GradScaler`: the loss it scales, the updates it skips, the scale it changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch.amp.grad_scaler import GradScaler, OptState

from tuimon.model.records import CLIP_ON
from tuimon.model.units import number
from tuimon.train.account import ScalerView, host_scale
from tuimon.train.observer import Observer
from tuimon.train.taps.hooks import is_capturing
from tuimon.train.taps.loss import LossTap
from tuimon.train.taps.patches import On, Patches
from tuimon.train.track import Track


class ScalerTap:
    """Wraps the methods at class level, so that every scaler of the process is seen."""

    def __init__(self, observer: Observer, losses: LossTap) -> None:
        self._observer = observer
        self._losses = losses
        guard = observer.boundary.guard
        self._scaled = guard("loss scale", self._on_scaled)
        self._unscaled = guard("loss scale", self._on_unscale)
        self._before_step = guard("loss scale", self._on_step)
        self._look = guard("loss scale", self._on_gradients)
        self._after_step = guard("loss scale", self._on_stepped)
        self._scale = guard("loss scale", host_scale)
        self._updated = guard("loss scale", self._on_update)

    def install(self, patches: Patches) -> None:
        """Wrap what a training calls, also where a subclass has its own."""
        for owner in (GradScaler, torch.cuda.amp.GradScaler):
            patches.install(owner, "scale", self._wrap_scale)
            patches.install(owner, "unscale_", self._wrap_unscale)
            patches.install(owner, "step", self._wrap_step)
            patches.install(owner, "update", self._wrap_update)

    def _wrap_scale(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if on[0] and not observer.off and scaler.is_enabled():
                self._scaled(scaler, outputs, scaled)
            return scaled

        return scale

    def _wrap_unscale(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def unscale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            # `GradScaler.step` calls it too: that is no call of the script's.
            if on[0] and not observer.off and observer.scaling is None and scaler.is_enabled():
                self._unscaled(scaler, args[0] if args else kwargs.get("optimizer"))
            return original(scaler, *args, **kwargs)

        return unscale

    def _wrap_step(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not on[0] or observer.off or observer.scaling is not None:
                return original(scaler, optimizer, *args, **kwargs)
            track = self._before_step(scaler, optimizer)
            if track is None:
                return original(scaler, optimizer, *args, **kwargs)
            try:
                self._look(scaler, optimizer, track)
                result = original(scaler, optimizer, *args, **kwargs)
                self._after_step(scaler, optimizer, track)
            finally:
                observer.scaling = observer.scaler = None
            return result

        return step

    def _wrap_update(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        observer = self._observer

        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            watched = on[0] and not observer.off and scaler.is_enabled()
            old = self._scale(scaler) if watched else None
            result = original(scaler, *args, **kwargs)
            if watched:
                self._updated(old, scaler)
            return result

        return update

    def _on_scaled(self, scaler: Any, outputs: Any, scaled: Any) -> None:
        self._losses.remember_scaled(outputs, scaled)
        self._observer.amp.overflows.note_loss(outputs)
        self._observer.amp.on_scale(scaler)

    def _on_unscale(self, scaler: Any, optimizer: Any) -> None:
        observer = self._observer
        track = observer.roster.tracks.get(id(optimizer))
        observer.amp.on_unscale(track, optimizer, host_scale(scaler))

    def _on_step(self, scaler: Any, optimizer: Any) -> Track | None:
        """The gate; None where this is not an update of a watched optimizer."""
        observer = self._observer
        if not scaler.is_enabled() or is_capturing():
            return None
        began_s = time.perf_counter()
        track = observer.roster.track_of(optimizer)
        if track is None:
            return None
        if scaler not in observer.roster.scalers:
            observer.roster.scalers.add(scaler)
            observer.roster.publish_facts()
        observer.scaling, observer.scaler = track, scaler
        try:
            track.enter()
        except BaseException:
            observer.scaling = observer.scaler = None
            raise
        observer.spent(began_s)
        return track

    def _on_gradients(self, scaler: Any, optimizer: Any, track: Track) -> None:
        """Statistics before the scaler acts; gradients may still carry the scale."""
        observer = self._observer
        began_s = time.perf_counter()
        ready = _stage(scaler, optimizer) is OptState.READY
        clipped = any(call.touches(track.plan.ids) for call in observer.clips.calls)
        if ready and observer.clipping.mode == CLIP_ON and not clipped:
            scaler.unscale_(optimizer)
            ready = False
        scale = host_scale(scaler)
        observer.amp.on_step(track, ready=ready, scale=scale)
        track.look(scale if ready else None, scaled=ready)
        if ready and observer.clipping.mode == CLIP_ON and not clipped:  # decided in a hold
            scaler.unscale_(optimizer)
            track.clip_as_asked()
        observer.amp.overflows.look(track)
        observer.spent(began_s)

    def _on_stepped(self, scaler: Any, optimizer: Any, track: Track) -> None:
        """A step is skipped when the optimizer did not run, or ran and found an Inf."""
        began_s = time.perf_counter()
        view = _view(scaler, optimizer)
        step, ran = track.step, track.update.ran
        skipped = bool(view.host_found_inf) or not ran
        track.finish(scaler=view, skipped=skipped)
        self._observer.amp.on_stepped(ran=ran)
        if skipped and view.host_found_inf is not False:
            self._tell_skip(track, step, view)
        self._observer.spent(began_s)

    def _tell_skip(self, track: Track, step: int, view: ScalerView) -> None:
        losses = self._observer.last_losses
        loss = losses.last if losses is not None else None
        skip = msgspec.structs.replace(
            self._observer.amp.overflows.take(step, track.index),
            scale=view.host_scale,
            loss_is_finite=None if loss is None else math.isfinite(loss),
        )
        self._observer.session.publish(skip)

    def _on_update(self, old: float | None, scaler: Any) -> None:
        self._observer.amp.on_update()
        self._observer.snapshots.on_new_scale(scaler)
        new = host_scale(scaler)
        if new is None or old is None or new == old:
            return
        text = f"loss scale {number(old)} → {number(new)}"
        self._observer.session.event("amp-scale", text)


def _stage(scaler: Any, optimizer: Any) -> Any:
    # A look-up must not create the entry that the scaler counts on being absent.
    state = scaler._per_optimizer_states.get(id(optimizer))
    return OptState.READY if state is None else state["stage"]


def _view(scaler: Any, optimizer: Any) -> ScalerView:
    """What the record of an update says about its scaler."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    found = list(state["found_inf_per_device"].values()) if state is not None else []
    on_host = bool(found) and all(flag.device.type == "cpu" for flag in found)
    return ScalerView(
        host_scale=host_scale(scaler),
        host_found_inf=any(float(flag) != 0.0 for flag in found) if on_host else None,
        scale=getattr(scaler, "_scale", None),
        found_inf=found,
    )
