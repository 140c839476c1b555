"""The public object: `watch` ties models and optimizers to the session of this process."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from tuimon.train.autopsy import streams
from tuimon.train.boundary import Stop as Stop
from tuimon.train.boundary import say
from tuimon.train.control.policy import NonFinite as NonFinite
from tuimon.train.control.policy import Policy as Policy
from tuimon.train.control.policy import policy_of
from tuimon.train.layers import alive
from tuimon.train.observer import Observer
from tuimon.train.session import Session, current_session, is_disabled, start_session
from tuimon.train.taps.wiring import Wiring

if TYPE_CHECKING:
    from tuimon.model.ledger import Ledger

_Function = TypeVar("_Function", bound=Callable[..., Any])
_wiring: Wiring | None = None  # one per process, for good: wrappers may outlive a monitor
_monitors: list[Monitor] = []
_discovered: Monitor | None = None


class Monitor:
    """What `watch` returns. An inert one does nothing and costs nothing.

    All methods belong to the training thread; none raises anything but `Stop` and `NonFinite`.
    """

    def __init__(
        self,
        observer: Observer | None = None,
        models: Iterable[nn.Module] = (),
        optimizers: Iterable[Optimizer] = (),
    ) -> None:
        self._observer = observer
        self._models = [weakref.ref(model) for model in models]
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._closed = observer is None
        self._registered: dict[str, Any] = {}
        if observer is not None:
            guard = observer.boundary.guard
            self._log = guard("log", observer.log)
            self._reach_boundary = guard("step", observer.reach_boundary)

    @property
    def closed(self) -> bool:
        """Whether this monitor has ended, or never began."""
        return self._closed

    def under(self, policy: Policy | None) -> Monitor:
        """Follow this policy from now on, if one is given."""
        if self._observer is not None and policy is not None:
            self._observer.adopt(policy)
        return self

    def foreseeing(self, total_steps: int | None, scheduler: Any) -> Monitor:
        """Tell viewers how many updates the run will make, where one of these knows."""
        with suppress(Exception):  # whatever a property of a stranger's scheduler raises
            total = total_steps or getattr(scheduler, "total_steps", None)
            if self._observer is not None and type(total) is int and total > 0:
                self._observer.session.foresee(total)
        return self

    def log(self, *args: Any, **scalars: Any) -> None:
        """Publish numbers of your own, by step: `log(acc=0.5)`, `log("train/acc", 0.5)`, or a dict.

        Tensors in host memory are read at once; those on a device are left out, because reading
        them would make the device wait. Whatever else is given is left out and told once: the
        loop goes on.
        """
        if self._observer is not None and not self._closed:
            self._log(args, scalars)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark one iteration explicitly: its ends are the boundaries from now on."""
        observer = self._observer
        if observer is None or self._closed:
            yield
            return
        observer.explicit = True
        self._reach_boundary()
        yield
        self._reach_boundary()

    def skip(self) -> bool:
        """Whether this batch should be left out; False unless somebody asked for it."""
        return False

    def register_state(self, name: str, state: Any) -> None:
        """Name an object that belongs to the training: what a step run again must begin with.

        A random generator of your own (torch, NumPy or Python) is set to what it was when the
        forward began; objects with `state_dict` and `load_state_dict` are noted for later.
        """
        self._registered[name] = state
        if self._observer is not None and streams.is_generator(state):
            self._observer.scenes.generators.append(state)

    @contextmanager
    def detached(self) -> Iterator[None]:
        """Everything off and all hooks away: for scripting, pickling or timing a model."""
        observer = self._observer
        if observer is None or self._closed:
            yield
            return
        guard = observer.boundary.guard
        guard("detached", lambda: _wire(observer.session).detach())()
        try:
            yield
        finally:
            guard("attached", lambda: _wire(observer.session).attach())()

    def forward(self, function: _Function) -> _Function:
        """Pass `fn(batch) -> loss` through, untouched; what it returns comes back as it is.

        A step that goes wrong can then be run again as a whole: its arguments are kept until the
        update is over. `fn` must neither call backward nor update anything, or it is not run again.
        """
        observer = self._observer
        if observer is None:
            return function
        begin = observer.boundary.guard("autopsy", lambda *a: observer.examiner.begin_closure(*a))
        end = observer.boundary.guard("autopsy", lambda each: observer.examiner.end_closure(each))

        @functools.wraps(function)
        def kept(*args: Any, **kwargs: Any) -> Any:
            closure = None if self._closed else begin(function, args, kwargs)
            result = function(*args, **kwargs)
            if closure is not None:
                end(closure)
            return result

        return kept  # type: ignore[return-value]

    def close(self) -> None:
        """Watch these objects no longer. Safe to call twice; also done at exit."""
        if self._closed:
            return
        self._closed = True
        if self in _monitors:
            _monitors.remove(self)
        observer = self._observer
        if observer is not None:
            observer.boundary.guard("close", self._release)(observer)

    def _release(self, observer: Observer) -> None:
        optimizers = [made for known in self._optimizers if (made := known()) is not None]
        _wire(observer.session).release(alive(self._models), optimizers, last=not _monitors)

    def holds(self, models: list[nn.Module], optimizers: list[Optimizer]) -> bool:
        """Whether these are exactly the objects of this monitor."""
        mine = [known() for known in self._optimizers]
        return (
            not self._closed
            and list(map(id, alive(self._models))) == list(map(id, models))
            and list(map(id, mine)) == list(map(id, optimizers))
        )

    def missing_from(self, models: Container[nn.Module]) -> list[nn.Module]:
        """The models of this monitor that are not among `models`."""
        return [model for model in alive(self._models) if model not in models]

    def follow(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """Stand for these objects from now on."""
        self._models = [weakref.ref(model) for model in models]
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]


def watch(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    scaler: Any = None,
    scheduler: Any = None,
    *,
    name: str | None = None,
    policy: str | Policy | None = None,
    budget_frac: float = 0.005,
    guard: str = "off",
    check_every: int = 1,
    snapshot_every: int = 0,
    activations: bool | None = None,
    total_steps: int | None = None,
) -> Monitor:
    """Watch a training; the loop stays as it is.

    Args:
        model: the module that the loop calls, or a list of them.
        optimizer: one or a list; None takes every optimizer that updates parameters of `model`.
        scaler, scheduler: seen without being named; accepted for clarity. Of a scheduler that
            knows its `total_steps` (OneCycleLR) the viewer has progress and the time that is left.
        name: of the run, when this call makes it.
        policy: what to do about an update whose gradients are not finite: "continue" (the
            default), "hold", "skip", "rollback" or "raise", or a `tuimon.Policy` with more to say.
        guard: must be "off" so far.
        snapshot_every: updates from one copy of the healthy state to the next, to roll back to; 0
            takes none.
        budget_frac: share of step time that sampled extras may cost (largest magnitudes,
            update-to-weight ratios, activations, histograms); 0 switches all of them off.
        check_every: measure gradients at every n-th update.
        activations: statistics of module outputs. None samples some modules now and then, within
            the budget; False never; True all of them, at least every 50 steps whatever it costs.
        total_steps: how many updates the run will make, for progress and the time that is left.

    Returns:
        Their monitor: one for the same objects, an inert one under `TUIMON_DISABLE=1`.

    Raises:
        ValueError: an argument asks for something that cannot be had.
    """
    models, optimizers = _listed(model, nn.Module), _listed(optimizer, Optimizer)
    _check_objects(models, optimizers)
    rules = None if policy is None and not snapshot_every else policy_of(policy, snapshot_every)
    _check_options(
        budget_frac=budget_frac,
        guard=guard,
        check_every=check_every,
        snapshot_every=snapshot_every,
        activations=activations,
        total_steps=total_steps,
    )
    if is_disabled():
        return Monitor()
    optimizers, sampling = [_inner(each) for each in optimizers], (float(budget_frac), activations)
    monitor = _watch(models, optimizers, name, check_every, sampling)
    return monitor.foreseeing(total_steps, scheduler).under(rules)


def _watch(
    models: list[nn.Module],
    optimizers: list[Optimizer],
    name: str | None,
    check_every: int,
    sampling: tuple[float, bool | None],
) -> Monitor:
    for monitor in _monitors:
        if monitor.holds(models, optimizers):
            return monitor
    try:
        session = start_session(name=name)
        if not session.watched:
            return Monitor()
        wiring = _wire(session)
        monitor = Monitor(wiring.observer, models, optimizers)
        wiring.observer.extras.configure(*sampling)
        wiring.add(models, optimizers, check_every=check_every, adopt=not optimizers)
    except Exception as error:
        return _not_watched(error)
    _monitors.append(monitor)
    return monitor


def arm(
    session: Session,
    *,
    on_unknown_optimizer: Callable[[Optimizer], Any] | None = None,
    policy: Policy | None = None,
    repeat: Ledger | None = None,
) -> None:
    """Listen to the whole process, before anything is known to be watched. Never raises."""
    if not session.watched:
        return
    try:
        wiring = _wire(session)
        wiring.keep_armed = True
        if policy is not None:
            wiring.observer.adopt(policy)
        if repeat is not None:
            wiring.observer.repeat(repeat)
        if on_unknown_optimizer is not None:
            wiring.discover_with(on_unknown_optimizer)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        say(f"cannot listen to torch ({why}); training goes on unwatched")
        session.watch.part_failed(why)


def watch_discovered(
    models: Mapping[str, nn.Module] | Iterable[nn.Module],
    optimizers: Iterable[Optimizer],
    session: Session,
    scaler: Any = None,
    scheduler: Any = None,
) -> Monitor:
    """Watch what was found in an unmodified script; a later call replaces what is watched.

    Args:
        models: root modules, by the name they go by if that is known.
        optimizers: all that are known.
        session: what `start_session` returned.
        scaler: seen without being named.
        scheduler: seen without being named.
    """
    global _discovered
    if not session.watched:
        return Monitor()
    try:
        wiring = _wire(session)
        if isinstance(models, Mapping):
            named = {module: name for name, module in models.items()}
        else:
            named = dict.fromkeys(models, "")
        listed = [_inner(each) for each in optimizers]
        if _discovered is None or _discovered.closed:
            _discovered = Monitor(wiring.observer, named, listed)
            _monitors.append(_discovered)
        elif _discovered.holds(list(named), listed):
            return _discovered
        else:
            wiring.forget(_discovered.missing_from(named))
            _discovered.follow(named, listed)
        wiring.add(named, listed)
        return _discovered
    except Exception as error:
        return _not_watched(error)


def _not_watched(error: Exception) -> Monitor:
    why = f"{type(error).__name__}: {error}"
    say(f"cannot watch ({why}); the training is not affected")
    if (session := current_session()) is not None:
        session.watch.part_failed(why)
    return Monitor()


def _wire(session: Session) -> Wiring:
    """The wiring of this process, tied to `session`."""
    global _wiring
    if _wiring is None:
        _wiring = Wiring(Observer(session))
        os.register_at_fork(after_in_child=_wiring.observer.become_inert)
    _wiring.tie(session)
    return _wiring


def _listed(given: Any, kind: type) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, kind):
        return [given]
    return list(given) if isinstance(given, list | tuple) else [given]


def _inner(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside Accelerate's wrapper, whose own hooks never fire."""
    inner = getattr(optimizer, "optimizer", None)
    if type(optimizer).__name__ == "AcceleratedOptimizer" and isinstance(inner, Optimizer):
        return inner
    return optimizer


def _check_objects(models: list[Any], optimizers: list[Any]) -> None:
    if not models:
        raise ValueError("tuimon.watch: no model given")
    for each in models:
        if not isinstance(each, nn.Module):
            raise ValueError(f"tuimon.watch: model is a {type(each).__name__}, not a torch module")
    for each in optimizers:
        if not isinstance(each, Optimizer):
            name = type(each).__name__
            raise ValueError(f"tuimon.watch: optimizer is a {name}, not a torch.optim.Optimizer")


def _check_options(
    *,
    budget_frac: Any,
    guard: Any,
    check_every: Any,
    snapshot_every: Any,
    activations: Any,
    total_steps: Any,
) -> None:
    """One clear error for what cannot be had, instead of silence."""
    if guard != "off":
        raise ValueError(f"tuimon.watch: guard={guard!r} is not available; only 'off' is")
    if not isinstance(snapshot_every, int) or snapshot_every < 0:
        raise ValueError(f"tuimon.watch: snapshot_every={snapshot_every!r} must be an integer ≥ 0")
    if activations not in (None, True, False):
        raise ValueError(f"tuimon.watch: activations={activations!r} must be None, True or False")
    if total_steps is not None and (not isinstance(total_steps, int) or total_steps < 1):
        raise ValueError(f"tuimon.watch: total_steps={total_steps!r} must be an integer above 0")
    if not isinstance(check_every, int) or check_every < 1:
        raise ValueError(f"tuimon.watch: check_every={check_every!r} must be an integer above 0")
    if not isinstance(budget_frac, int | float) or not 0 <= budget_frac <= 1:
        raise ValueError(f"tuimon.watch: budget_frac={budget_frac!r} must lie in [0, 1]")
