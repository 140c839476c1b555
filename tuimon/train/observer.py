"""The state of watching in one process: who is watched, what happened since the last update.

Taps write here, tracks read. Everything is done by the training thread; the control thread reads
`layers` and `clipping` only, each replaced as a whole or a single word.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from tuimon.model.records import Facts, Scalars
from tuimon.model.text import plain
from tuimon.train.account import Clips, Losses, Times
from tuimon.train.boundary import Boundary
from tuimon.train.clip import Clipping
from tuimon.train.controls import Controls, matches
from tuimon.train.gate import Gate
from tuimon.train.layers import NO_LAYERS, Layers, alive, build_layers, distinct, prefixes
from tuimon.train.session import Session
from tuimon.train.stats import host_number

if TYPE_CHECKING:
    from tuimon.train.track import Track

_OPTIMIZER_FILE = sys.modules["torch.optim.optimizer"].__file__


class Observer:
    """Owns the tracks and the layer table of a session.

    Attributes:
        tracks: by id of the optimizer; a dead optimizer's track is dropped at the next change.
        current: the track whose outermost `step` is running.
        scaling: the track whose `GradScaler.step` is running.
        explicit: the user marks boundaries with `mon.step()`; forwards no longer do.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.boundary = Boundary(self._tap_failed)
        self.clipping = Clipping()
        self.gate = Gate(self)
        self.controls = Controls(self)
        self.tracks: dict[int, Track] = {}
        self.models: list[weakref.ref[nn.Module]] = []
        self.names: dict[int, str] = {}  # id of a root -> the name it goes by
        self.scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.layers: Layers = NO_LAYERS
        self.primary: Track | None = None
        self.current: Track | None = None
        self.scaling: Track | None = None
        self.nested = 0
        self.losses = Losses()
        self.last_losses: Losses | None = None
        self.times = Times()
        self.clips = Clips()
        self.backward_calls = 0
        self.explicit = False
        self.detached = False
        self.thread = get_ident()
        self.on_unknown: Callable[[Optimizer], Any] | None = None
        self.loss_node: str | None = None
        self._facts: Facts | None = None

    # --- who is watched -------------------------------------------------------------------------

    def add(
        self,
        models: Mapping[nn.Module, str] | Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        check_every: int = 1,
    ) -> None:
        """Watch more models and optimizers; those already watched are left alone."""
        from tuimon.train.track import Track

        known = {id(model) for model in alive(self.models)}
        self.models = [reference for reference in self.models if reference() is not None]
        self.models += [weakref.ref(model) for model in models if id(model) not in known]
        if isinstance(models, Mapping):
            self.names |= {id(model): name for model, name in models.items()}
        for optimizer in optimizers:
            track = self.tracks.get(id(optimizer))
            if track is None or track.optimizer is None:
                track = Track(self, optimizer, self._free_index())
                self.tracks[id(optimizer)] = track
            track.check_every = check_every
        self.renew_layers()

    def drop(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """Watch these no longer."""
        gone = {id(model) for model in models}
        self.models = [
            reference
            for reference in self.models
            if (model := reference()) is not None and id(model) not in gone
        ]
        for optimizer in optimizers:
            track = self.tracks.pop(id(optimizer), None)
            if track is not None:
                track.close()
                if self.primary is track:
                    self.primary = None

    def roots(self) -> list[tuple[str, nn.Module]]:
        """(prefix of its names, root module) of the live models, each once."""
        models = distinct(alive(self.models))
        return list(zip(prefixes(models, self.names), models, strict=True))

    def track_of(self, optimizer: Any) -> Track | None:
        """The track of an optimizer, also of one inside a wrapper such as Accelerate's."""
        track = self.tracks.get(id(optimizer))
        if track is None and isinstance(optimizer, Optimizer):
            self.ask_about(optimizer)
            track = self.tracks.get(id(optimizer))
        return track if track is not None and track.optimizer is optimizer else None

    def ask_about(self, optimizer: Optimizer) -> None:
        """Give discovery a chance to name an optimizer that nobody watches."""
        track = self.tracks.get(id(optimizer))
        if track is not None and track.optimizer is optimizer:
            return
        if self.on_unknown is not None:
            self.on_unknown(optimizer)

    def updates_watched(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer owns parameters of a watched model."""
        known = {id(param) for model in alive(self.models) for param in model.parameters()}
        return any(id(p) in known for group in optimizer.param_groups for p in group["params"])

    def start_over(self, session: Session) -> None:
        """Publish everything again, to another session."""
        self.session = session
        self.layers = NO_LAYERS
        self._facts = None
        self.gate = Gate(self)
        self.controls = Controls(self)

    def gradient_note(self, track: Track) -> str:
        """What a reader of dumped gradients must know about them."""
        if self.scaling is track:
            return "gradients as before GradScaler.step: they may carry the loss scale"
        return "gradients as before the update"

    def elect(self, track: Track) -> None:
        """At the first update of a track: decide whether it is the primary one.

        The first that steps is; later ones take over only from one that is gone or that owns some
        of the same parameters, and go on with its step count.
        """
        primary = self.primary
        if primary is None or primary.optimizer is None or primary.shares_with(track):
            taken = self.session.step
            track.step = 0 if taken is None else taken + 1
            old, track.index = track.index, 0
            for other in self.tracks.values():
                if other is not track and other.index == 0:
                    other.index = old or self._free_index()
            self.primary = track
            self.renew_layers()
        self.publish_facts()

    def _free_index(self) -> int:
        used = {track.index for track in self.tracks.values() if track.optimizer is not None}
        return next(index for index in range(len(used) + 1) if index not in used)

    def renew_layers(self) -> None:
        """Publish a new epoch of the layer table if it differs from the last one."""
        self.tracks = {
            key: track for key, track in self.tracks.items() if track.optimizer is not None
        }
        owned = [(track.index, track.owned()) for track in self.tracks.values()]
        models = alive(self.models)
        new = build_layers(models, owned, self.layers.table.epoch, self.names)
        if new.table != self.layers.table:
            new = build_layers(models, owned, self.layers.table.epoch + 1, self.names)
            self.session.keep("layers", new.table)
        self.layers = new
        for track in self.tracks.values():
            track.plan_again()

    def publish_facts(self) -> None:
        """Publish what the live objects are, when that has changed."""
        tracks = sorted(self.tracks.values(), key=lambda track: track.index)
        optimizers = [track.optimizer for track in tracks if track.optimizer is not None]
        models = alive(self.models)
        params = [param for track in tracks for param in track.owned()]
        scaler = next((type(each).__name__ for each in self.scalers if each.is_enabled()), None)
        facts = Facts(
            optimizers=[type(optimizer).__name__ for optimizer in optimizers],
            param_groups=[len(optimizer.param_groups) for optimizer in optimizers],
            scaler=scaler,
            modules=[type(model).__name__ for model in models],
            loss_node=self.loss_node,
            devices=sorted({str(param.device) for param in params}),
            fused=[bool(optimizer.defaults.get("fused")) for optimizer in optimizers],
        )
        if facts != self._facts:
            self._facts = facts
            self.session.keep("facts", facts)

    # --- what taps ask ----------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether taps may do anything at all here and now."""
        return not (self.boundary.inert or self.detached or torch.compiler.is_compiling())

    def is_nested(self) -> bool:
        """Whether the running step hook belongs to a step inside another step.

        Each level of `Optimizer.step` has one frame of torch's hook wrapper on the stack. A step
        that raised leaves `current` set, but no frame.
        """
        frame = sys._getframe(1)
        levels = 0
        while frame is not None:
            code = frame.f_code
            if code.co_name == "wrapper" and code.co_filename == _OPTIMIZER_FILE:
                levels += 1
                if levels == 2:
                    return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def reach_boundary(self) -> None:
        """A place where no graph is alive: commands that end the training act here."""
        if self.gate.busy and not self.boundary.inert:
            self.gate.at_boundary()

    def log(self, scalars: Mapping[str, Any]) -> None:
        """Publish the user's own numbers for the step that is being prepared."""
        values: dict[str, float] = {}
        for name, value in scalars.items():
            number = host_number(value)
            if number is None:
                self.boundary.failed(f"log {name}", TypeError("not a number in host memory"))
            else:
                values[plain(name)] = number
        if values:
            self.session.publish(Scalars(step=self.next_step(), values=values))

    def take_losses(self, track: Track) -> Losses:
        """The losses that led to the update of `track`; two optimizers may share them."""
        losses = self.losses
        last = self.last_losses
        if losses.calls == 0 and last is not None and id(track) not in last.taken_by:
            last.taken_by.add(id(track))
            return last
        losses.taken_by.add(id(track))
        self.last_losses = losses
        self.losses = Losses()
        return losses

    def updated(self, track: Track) -> None:
        """After the record of an update: what led to it is used up."""
        self.times = Times(fetched_s=self.times.fetched_s)
        clips = self.clips
        if len(self.tracks) == 1:
            clips.clear()
        elif clips.calls or clips.held:
            grads = {id(param.grad) for param in track.plan.params}
            clips.forget(track.plan.ids, grads)

    def next_step(self) -> int:
        """Index of the update that is being prepared."""
        return self.primary.step if self.primary is not None else 0

    def dump_tensors(self, wanted: Iterable[str]) -> list[tuple[str, torch.Tensor]]:
        """(name, parameter) of what the names stand for, in the order of the layer table."""
        layers = self.layers
        resolved = [layers.table.aliases.get(name, name) for name in wanted]
        live: dict[str, torch.Tensor] = {}
        for param in self._all_params():
            place = layers.place_of.get(id(param))
            if place is not None:
                live[layers.table.names[place]] = param
        return [
            (name, live[name])
            for name in layers.table.names
            if name in live and any(matches(name, each) for each in resolved)
        ]

    def _all_params(self) -> Iterable[torch.Tensor]:
        for model in alive(self.models):
            yield from model.parameters()
        for track in self.tracks.values():
            yield from track.owned()

    def spent(self, began_s: float) -> None:
        """Add the time since `began_s` to tuimon's own account."""
        self.times.cost_s += time.perf_counter() - began_s

    # --- failures and forks -----------------------------------------------------------------------

    def _tap_failed(self, tap: str, cause: str, last: bool) -> None:
        kind = "tap-disarmed" if last else "tap-failed"
        self.session.event(kind, f"{tap}: {cause}", severity="warning")

    def become_inert(self) -> None:
        """In a forked child: every tap only passes through from now on."""
        self.boundary.inert = True
