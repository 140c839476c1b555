"""Listens to the script's own gradient clipping, and changes its bound when asked to.

The two inner functions are looked up in their module at every call, so wrapping them there
catches every importer of `clip_grad_norm_`, however early.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.utils.clip_grad as torch_clip

from tuimon.model.records import CLIP_USER
from tuimon.train.account import ClipCall
from tuimon.train.control import clip
from tuimon.train.stats import host_number
from tuimon.train.taps.patches import On, Patches

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track


# Told while the compiler traces a clipping; the compiled code holds nothing of it.
_on_traced: list[Callable[[], Any]] = []


def _traced() -> None:
    """Runs once per compilation, outside of the graph that is being made."""
    for told in _on_traced:
        told()


# What `torch.compiler.assume_constant_result` does, without importing the compiler for it.
setattr(_traced, "_dynamo_marked_constant", True)  # noqa: B010


class ClipTap:
    """Keeps per-tensor norms before the multiplication, and decides about its bound."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        guard = observer.boundary.guard
        self._spy = guard("clipping", self._spying)
        self._decide = guard("clipping", self._on_multiply)
        self._suppresses = guard("clipping", self._on_values)
        self._says = guard("clipping", self._on_traced)
        self._said_to: Any = None  # the session that knows of clipping in compiled regions

    def install(self, patches: Patches) -> None:
        """Wrap the inner functions and their public names."""
        if self._says not in _on_traced:
            _on_traced[:] = [self._says]
        patches.install(torch_clip, "clip_grad_value_", self._wrap_values)
        patches.install(torch.nn.utils, "clip_grad_value_", self._wrap_values)
        if clip.total_norm is None or clip.multiply is None:
            return
        patches.install(torch_clip, "_get_total_norm", self._wrap_norm)
        patches.install(torch_clip, "_clip_grads_with_norm_", self._wrap_multiply)
        patches.install(torch.nn.utils, "get_total_norm", self._wrap_norm)
        patches.install(torch.nn.utils, "clip_grads_with_norm_", self._wrap_multiply)

    def _wrap_norm(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        def total_norm(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                _traced()
                return original(*args, **kwargs)
            with (self._spy() if on[0] else None) or nullcontext():
                return original(*args, **kwargs)

        return total_norm

    def _spying(self) -> Any:
        observer = self._observer
        if observer.off or torch.compiler.is_compiling() or get_ident() != observer.thread:
            return None
        clips = observer.clips
        return clip.spying(clips.norms, clips.held, observer.thread)

    def _wrap_multiply(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        def multiply(
            parameters: Any, max_norm: Any, total_norm: Any, foreach: bool | None = None
        ) -> Any:
            if not on[0] or torch.compiler.is_compiling():
                return original(parameters, max_norm, total_norm, foreach)
            # A generator can be walked once only, and torch walks it too.
            if not isinstance(parameters, torch.Tensor | list | tuple):
                parameters = list(parameters)
            decision = self._decide(parameters, max_norm, total_norm)
            if decision is None:
                return original(parameters, max_norm, total_norm, foreach)
            suppressed, bound = decision
            return None if suppressed else original(parameters, bound, total_norm, foreach)

        return multiply

    def _wrap_values(self, original: Callable[..., Any], on: On) -> Callable[..., Any]:
        def clip_values(parameters: Any, clip_value: Any, foreach: bool | None = None) -> Any:
            if torch.compiler.is_compiling():
                _traced()
                return original(parameters, clip_value, foreach)
            if not on[0]:
                return original(parameters, clip_value, foreach)
            if not isinstance(parameters, torch.Tensor | list | tuple):
                parameters = list(parameters)
            if self._suppresses(parameters):
                return None
            return original(parameters, clip_value, foreach)

        return clip_values

    def _on_traced(self) -> None:
        """The script clips where nothing can be seen: say so, once."""
        observer = self._observer
        if not observer.off and self._said_to is not observer.session:
            self._said_to = observer.session
            observer.session.event(
                "clip-compiled",
                "clipping inside a compiled region is not seen: norms are those that it leaves",
            )

    def _on_values(self, parameters: Any) -> bool:
        """Whether a clipping of elements must not happen, because tuimon clips or nobody does."""
        began_s = time.perf_counter()
        observer = self._observer
        if observer.off or torch.compiler.is_compiling() or get_ident() != observer.thread:
            return False
        params = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        call = ClipCall(params, math.inf)
        tracks = self._touched(call)
        if tracks:
            observer.gate.come_to_clipping(tracks[0])
        suppressed = bool(tracks) and observer.clipping.mode != CLIP_USER
        if not suppressed and call.touches(observer.roster.layers.place_of):
            if not tracks:
                clip.measure_missing(params, observer.clips.norms, observer.clips.held)
            for track in tracks:
                track.before_clipping(hides=True)
            observer.clips.calls.append(call)
        observer.spent(began_s)
        return suppressed

    def _touched(self, call: ClipCall) -> list[Track]:
        """The tracks whose parameters are clipped, also those they got since their last update."""
        roster = self._observer.roster
        found = [track for track in roster.tracks.values() if call.touches(track.plan.ids)]
        if not found and not call.touches(roster.layers.place_of):
            for track in list(roster.tracks.values()):
                track.keep_up()
            found = [track for track in roster.tracks.values() if call.touches(track.plan.ids)]
        return found

    def _on_multiply(self, parameters: Any, max_norm: Any, total_norm: Any) -> Any:
        """(suppress?, bound) of a clipping of watched parameters; None to leave it alone."""
        began_s = time.perf_counter()
        observer = self._observer
        if observer.off or torch.compiler.is_compiling() or get_ident() != observer.thread:
            return None
        params = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        probe = ClipCall(params, None)
        tracks = self._touched(probe)
        users = float(max_norm)
        if not tracks:
            # An optimizer becomes known at its first update, after the clipping for it.
            if probe.touches(observer.roster.layers.place_of):
                clip.measure_missing(params, observer.clips.norms, observer.clips.held)
                observer.clips.calls.append(clip.called(params, users, total_norm, CLIP_USER))
            return None
        observer.gate.come_to_clipping(tracks[0])
        clipping = observer.clipping
        if math.isfinite(users):
            clipping.seen_max_norm = users
        bound = clipping.effective(users)
        if bound is not None:
            clip.measure_missing(params, observer.clips.norms, observer.clips.held)
            for track in tracks:
                track.before_clipping(hides=_is_bad(total_norm))
        observer.clips.calls.append(clip.called(params, bound, total_norm, clipping.mode))
        observer.spent(began_s)
        return bound is None, max_norm if bound == users else bound


def _is_bad(norm: Any) -> bool:
    """Whether a norm in host memory is not finite: multiplying by it spreads NaN."""
    number = host_number(norm)
    return number is not None and not math.isfinite(number)
