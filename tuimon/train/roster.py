"""Who is watched in this process: models, optimizers, their numbers and the layer table."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from tuimon.model.batches import LossFacts
from tuimon.model.records import Facts
from tuimon.train.control.controls import matches
from tuimon.train.facts.beginning import settings_of
from tuimon.train.layers import NO_LAYERS, Layers, alive, build_layers, distinct, prefixes
from tuimon.train.session import Session

if TYPE_CHECKING:
    from tuimon.train.track import Track


class Roster:
    """Written by the training thread; the control thread reads `layers`, replaced as a whole.

    Attributes:
        tracks: by id of the optimizer; a dead optimizer's track is dropped at the next change.
        primary: the track whose updates are the steps of the run.
        make_track: (optimizer, index) -> a new track.
        on_device: gradients of some optimizer have been measured on a device.
        on_unknown: asked about an optimizer that nobody watches, before its update.
    """

    def __init__(self, session: Session, make_track: Callable[[Optimizer, int], Track]) -> None:
        self.session = session
        self.make_track = make_track
        self.tracks: dict[int, Track] = {}
        self.models: list[weakref.ref[nn.Module]] = []
        self.names: dict[int, str] = {}  # id of a root -> the name it goes by
        self.scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.layers: Layers = NO_LAYERS
        self.primary: Track | None = None
        self.on_unknown: Callable[[Optimizer], Any] | None = None
        self.on_device = False
        self.loss_node: str | None = None
        self.losses: list[LossFacts] = []
        self.batches_per_epoch: int | None = None
        self._facts: Facts | None = None

    def add(
        self,
        models: Mapping[nn.Module, str] | Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        check_every: int = 1,
    ) -> None:
        """Watch more models and optimizers; those already watched are left alone."""
        known = {id(model) for model in alive(self.models)}
        self.models = [reference for reference in self.models if reference() is not None]
        self.models += [weakref.ref(model) for model in models if id(model) not in known]
        if isinstance(models, Mapping):
            self.names |= {id(model): name for model, name in models.items()}
        for optimizer in optimizers:
            track = self.tracks.get(id(optimizer))
            if track is None or track.optimizer is None:
                track = self.make_track(optimizer, self.free_index())
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

    def shares(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer updates parameters that a watched one updates too."""
        owned = {id(param) for track in self.tracks.values() for param in track.owned()}
        return any(id(p) in owned for group in optimizer.param_groups for p in group["params"])

    def gradients_are_cleared(self) -> bool:
        """Whether no watched parameter has a gradient; False while none is known."""
        plans = [track.plan.params for track in self.tracks.values()]
        return any(plans) and all(param.grad is None for params in plans for param in params)

    def start_over(self, session: Session) -> None:
        """Publish everything again, to another session."""
        self.session = session
        self.layers = NO_LAYERS
        self.primary = None
        self.loss_node = self.batches_per_epoch = None
        self.losses = []
        self._facts = None

    def next_step(self) -> int:
        """Index of the update of the primary optimizer that is being prepared."""
        if self.primary is not None:
            return self.primary.step
        return 0 if self.session.step is None else self.session.step + 1

    def elect(self, track: Track) -> None:
        """At the first update of a track: decide whether it is the primary one.

        The first that steps is; later ones take over only from one that is gone or that owns some
        of the same parameters, and go on with its step count.
        """
        primary = self.primary
        if primary is None or primary.optimizer is None or primary.shares_with(track):
            track.step = 0 if self.session.step is None else self.session.step + 1
            old, track.index = track.index, 0
            for other in self.tracks.values():
                if other is not track and other.index == 0:
                    other.index = old or self.free_index()
            self.primary = track
            self.renew_layers()
        self.publish_facts()

    def free_index(self) -> int:
        """The lowest number that no track has."""
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
        # Optimizers that step inside one backward share a number, and one speaks for them.
        numbered = {track.index: track for track in reversed(self.tracks.values())}
        tracks = [numbered[index] for index in sorted(numbered)]
        optimizers = [track.optimizer for track in tracks if track.optimizer is not None]
        models = alive(self.models)
        params = [param for track in self.tracks.values() for param in track.owned()]
        scaler = next((type(each).__name__ for each in self.scalers if each.is_enabled()), None)
        facts = Facts(
            optimizers=[type(optimizer).__name__ for optimizer in optimizers],
            param_groups=[len(optimizer.param_groups) for optimizer in optimizers],
            scaler=scaler,
            modules=[type(model).__name__ for model in models],
            loss_node=self.loss_node,
            devices=sorted({str(param.device) for param in params}),
            fused=[bool(optimizer.defaults.get("fused")) for optimizer in optimizers],
            losses=self.losses,
            batches_per_epoch=self.batches_per_epoch,
            settings=[settings_of(optimizer) for optimizer in optimizers],
        )
        if facts != self._facts:
            self._facts = facts
            self.session.keep("facts", facts)

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
