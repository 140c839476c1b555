"""Connects an observer to torch and disconnects it: process-wide wrappers and instance hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tuimon.train.autopsy.scene import AfterForward
from tuimon.train.crash import look_at_crash
from tuimon.train.layers import alive
from tuimon.train.observer import DISCOVERY_TAP, Observer
from tuimon.train.session import Session
from tuimon.train.taps.clipping import ClipTap
from tuimon.train.taps.compiler import leave_alone
from tuimon.train.taps.ending import EndingTap
from tuimon.train.taps.functional import FunctionalTap
from tuimon.train.taps.hooks import BeforeForward, hook_optimizer
from tuimon.train.taps.loader import LoaderTap
from tuimon.train.taps.loading import LoadTap
from tuimon.train.taps.loss import LossTap
from tuimon.train.taps.patches import Patches
from tuimon.train.taps.scaler import ScalerTap
from tuimon.train.taps.warned import WarningTap


class Wiring:
    """Owns the wrappers and the hooks of the process. Used by the training thread only.

    Attributes:
        keep_armed: the wrappers stay although no monitor is left.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.keep_armed = False
        self._patches = Patches()
        self._forwards: dict[int, tuple[weakref.ref[nn.Module], Any]] = {}
        self._global_hook: Any = None
        self._adopts = False
        self._tied: Session | None = None
        self._asked: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        losses = LossTap(observer)
        self._taps = (
            losses,
            ClipTap(observer),
            ScalerTap(observer, losses),
            LoaderTap(observer),
            LoadTap(observer),
            WarningTap(observer),
            EndingTap(observer),
            FunctionalTap(observer),
        )
        self._unknown = observer.boundary.guard(DISCOVERY_TAP, self._on_unknown)
        leave_alone(self._unknown.__code__, callees=True)  # the one body of all guarded functions
        leave_alone(BeforeForward.__call__.__code__, callees=False)
        leave_alone(AfterForward.__call__.__code__, callees=False)
        self._discover: Callable[[Optimizer], Any] | None = None

    def tie(self, session: Session) -> None:
        """Publish to `session` from now on, with every wrapper in place."""
        observer = self.observer
        if observer.session is not session:
            observer.start_over(session)
        if self._tied is not session:
            self._tied = session
            session.before_finish(observer.flush)
            session.look_at_crash = partial(look_at_crash, observer=observer)
            session.after_crash = observer.examiner.testing.after_crash
        session.listen(observer.controls.on_request)
        self._install()

    def discover_with(self, discover: Callable[[Optimizer], Any]) -> None:
        """Ask `discover` about optimizers that nobody watches."""
        self._discover = discover
        self._listen_globally()

    def add(
        self,
        models: Mapping[nn.Module, str] | Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        *,
        check_every: int = 1,
        adopt: bool = False,
    ) -> None:
        """Watch more objects; `adopt` takes any optimizer that updates watched models."""
        self.observer.roster.add(models, optimizers, check_every)
        if adopt:
            self._adopts = True
        self._listen_globally()
        self._hook_all()

    def forget(self, models: Iterable[nn.Module]) -> None:
        """Take these models out again."""
        listed = list(models)
        self._unhook(listed)
        self.observer.roster.drop(listed, ())

    def release(self, models: list[nn.Module], optimizers: list[Optimizer], *, last: bool) -> None:
        """Watch these no longer; with the last monitor the run ends, and nothing of ours stays."""
        if last and not self.keep_armed:
            self.observer.session.finish("ok", detail="watching was ended by close()")
        self._unhook(models)
        self.observer.roster.drop(models, optimizers)
        if last and not self.keep_armed:
            self._adopts = False
            self.observer.extras.stop()
            self.observer.examiner.release()
            self.observer.snapshots.release()
            for track in list(self.observer.roster.tracks.values()):
                track.close()
            self.observer.roster.tracks.clear()
            self.observer.inside.start_over()
            self._unhook(alive(self.observer.roster.models))
            self._remove()

    def detach(self) -> None:
        """Everything off and away; `attach` brings it back."""
        self.observer.switch(off=True)
        self.observer.extras.stop()
        self.observer.examiner.release()
        self.observer.snapshots.release()
        for track in self.observer.roster.tracks.values():
            track.close()
            track.interrupt()
        self._unhook(alive(self.observer.roster.models))
        self._remove()

    def attach(self) -> None:
        """After `detach`: everything as before."""
        self.observer.switch(off=False)
        self._install()
        self._listen_globally()
        self._hook_all()

    def _install(self) -> None:
        for tap in self._taps:
            tap.install(self._patches)
        self.observer.roster.on_unknown = self._unknown

    def _remove(self) -> None:
        self._patches.remove_all()
        if self._global_hook is not None:
            self._global_hook.remove()
            self._global_hook = None

    def _hook_all(self) -> None:
        observer = self.observer
        for track in observer.roster.tracks.values():
            if not track.attached and track.optimizer is not None:
                hook_optimizer(track, observer)
        for model in alive(observer.roster.models):
            known = self._forwards.get(id(model))
            if known is None or known[0]() is not model:
                handles = (
                    model.register_forward_pre_hook(BeforeForward(observer), with_kwargs=True),
                    # Stays: while an exception passes, torch walks this table itself, and a hook
                    # that goes or comes meanwhile would put torch's own error in its place.
                    model.register_forward_hook(AfterForward(observer), always_call=True),
                )
                self._forwards[id(model)] = (weakref.ref(model), handles)

    def _unhook(self, models: Iterable[nn.Module]) -> None:
        for model in models:
            known = self._forwards.pop(id(model), None)
            if known is not None and known[0]() is model:
                for handle in known[1]:
                    handle.remove()

    def _listen_globally(self) -> None:
        if self._global_hook is None:
            # A plain function: torch keeps it in a global table that nobody copies.
            observer = self.observer
            roster = observer.roster
            ask = observer.boundary.guard(DISCOVERY_TAP, roster.ask_about)

            def before_any_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
                track = roster.tracks.get(id(optimizer))
                if (track is None or track.reference() is not optimizer) and not observer.off:
                    ask(optimizer)

            leave_alone(before_any_step.__code__, callees=True)
            self._global_hook = register_optimizer_step_pre_hook(before_any_step)

    def _on_unknown(self, optimizer: Optimizer) -> None:
        if optimizer in self._asked:
            return
        roster = self.observer.roster
        # A step of its own on watched parameters: the working part of a wrapper (SAM and its kin)
        # whose own `step` the script does not call. Inside a watched step it is a part of that.
        inner = self.observer.current is None and roster.shares(optimizer)
        if inner or (self._adopts and roster.updates_watched(optimizer)):
            self.add((), [optimizer])
            return
        if self._discover is None or self._discover(optimizer) is not False:
            self._asked.add(optimizer)
