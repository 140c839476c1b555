"""Spawned children of a watched process: who trains is a rank of its run, or a run of its own.

The parent adds one entry to what `multiprocessing` sends a child to prepare it; unpickling that
entry begins the watch there. Nothing is imported, opened or published in the child until it makes
an optimizer, so that data workers stay what they are.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuimon.train.boundary import say
from tuimon.train.launch import tracebacks
from tuimon.train.launch.discovery import Arrival, Discovery, by_variable

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

    from tuimon.model.ledger import Ledger
    from tuimon.train.session import Session

BOOTSTRAP = Path(__file__).with_name("spawned.py")
_ENTRY = "tuimon"  # among the preparation data; the child's `prepare` passes over names it ignores
_LAST = -100  # priority among multiprocessing's finalizers: after those of queues and managers


class _Bequest:
    """Unpickles by running the bootstrap; what it becomes in the child is of no use to anybody."""

    def __init__(self, parent: str, run: str, ledger: str) -> None:
        self._words = {"parent": parent, "run": run, "ledger": ledger}

    def __reduce__(self) -> Any:
        return runpy.run_path, (str(BOOTSTRAP), self._words)


class Heirs:
    """Hands the watch on to the children that this process spawns.

    Attributes:
        count: how many children were prepared.
        run: folder of the run that they may be ranks of; "" while there is none.
    """

    def __init__(self, parent: str, run: str = "", ledger: str = "") -> None:
        self.count = 0
        self.run = run
        self._ledger = ledger
        self._parent = parent
        self._pid = os.getpid()

    def arm(self) -> None:
        """Extend the preparation of children, as soon as the script can spawn any."""
        Arrival("multiprocessing.spawn", self._arrived).watch()

    def _arrived(self) -> None:
        import multiprocessing.spawn as spawn

        original = spawn.get_preparation_data

        @wraps(original)
        def prepared(name: str) -> dict[str, Any]:
            data = original(name)
            if os.getpid() == self._pid:
                self.count += 1
                data[_ENTRY] = _Bequest(self._parent, self.run, self._ledger)
            return data

        spawn.get_preparation_data = prepared


def begin(parent: str, run: str, ledger: str = "") -> None:
    """In a child that is being prepared: look out for a training."""
    Child(parent, run, ledger).start()


class Child:
    """A spawned process that may come to train. Used by whatever thread makes an optimizer.

    Failures cost the view of this process and one line on stderr.
    """

    def __init__(self, parent: str, run: str, ledger: str) -> None:
        self._parent = parent
        self._run = run
        self._ledger = ledger
        self._pid = os.getpid()
        self._session: Session | None = None
        self._has_begun = False

    def start(self) -> None:
        """Wait for torch, and let this process's own children do the same."""
        Heirs(self._parent, self._run, self._ledger).arm()
        Arrival("torch", lambda: self._unfailing(self._torch_arrived)).watch()

    def _torch_arrived(self) -> None:
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        original = Optimizer.__init__

        @wraps(original)
        def first(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._unfailing(lambda: self._meet(optimizer))

        def stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            # One that came by the pipe was never made here.
            self._unfailing(lambda: self._meet(optimizer))

        setattr(Optimizer, "__init__", first)  # noqa: B010 - mypy refuses the assignment
        hook = register_optimizer_step_pre_hook(stepping)

        def leave() -> None:
            hook.remove()
            if Optimizer.__dict__.get("__init__") is first:
                setattr(Optimizer, "__init__", original)  # noqa: B010

        self._leave: Callable[[], None] = leave

    def _meet(self, optimizer: Optimizer) -> None:
        """The first optimizer: this process trains."""
        if self._has_begun or os.getpid() != self._pid or _is_data_worker():
            return
        self._has_begun = True
        self._leave()
        from tuimon.train.session import start_session

        self._session = start_session(name=self._name(), argv=list(sys.argv), launcher=self._run)
        if not self._session.watched:
            return
        from tuimon.train.monitor import arm

        discovery = Discovery(self._found, self._unfailing)
        arm(
            self._session,
            on_unknown_optimizer=discovery.unknown_optimizer,
            repeat=self._to_repeat() if self._ledger else None,
        )
        discovery.arm()
        discovery.made(optimizer)
        _show_clean_tracebacks()
        from multiprocessing.util import Finalize

        Finalize(None, self._finish, exitpriority=_LAST)

    def _name(self) -> str:
        """A rank has the name of the run it is a part of, any other child its own as well."""
        from multiprocessing.process import current_process

        from tuimon.train.place import find_place

        if find_place().world_size > 1:
            return self._parent
        return f"{self._parent}/{current_process().name}"

    def _to_repeat(self) -> Ledger | None:
        """What a rank of the run repeats of an earlier one; the ledger is not of another run."""
        from tuimon.errors import UsageError
        from tuimon.feed.ledger import read_ledger
        from tuimon.train.place import find_place

        if find_place().world_size < 2:
            say(f"--apply: nothing is repeated in {self._name()}, which is a run of its own")
            return None
        try:
            return read_ledger(self._ledger)[1]
        except UsageError as error:
            say(f"--apply: nothing is repeated in this rank: {error}")
            return None

    def _found(self, models: list[Module], optimizers: list[Optimizer]) -> None:
        from tuimon.train.monitor import watch_discovered

        if self._session is not None:
            watch_discovered(by_variable(models) or models, optimizers, self._session)

    def _finish(self) -> None:
        """Called by multiprocessing when the target has returned or raised."""
        from tuimon.train.launch.watching import how_it_ended

        error = sys.exc_info()[1]
        session = self._session
        if session is None:
            return
        if error is None:
            session.finish("ok", code=0)
            return
        kind, code, detail = how_it_ended(error)
        if isinstance(error, SystemExit) and isinstance(error.__context__, Exception):
            _, _, detail = how_it_ended(error.__context__)  # what the launcher turned into an exit
        session.finish(kind, code=code, detail=detail)

    def _unfailing(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            say(f"{text}; this child goes on without that part of the watch")
            if self._session is not None:
                self._session.watch.part_failed(text)


def _is_data_worker() -> bool:
    """Whether this process loads data: a dataset may well train something of its own."""
    workers = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(workers, "_worker_info", None) is not None


def _show_clean_tracebacks() -> None:
    """Exceptions of a child are turned into text by whoever sends them to the parent."""
    original = traceback.TracebackException.__init__

    @wraps(original)
    def read(
        self: traceback.TracebackException, kind: Any, error: Any, trace: Any, **options: Any
    ) -> None:
        if isinstance(error, BaseException) and error.__traceback__ is trace:
            with contextlib.suppress(Exception):
                tracebacks.clean(error)
                trace = error.__traceback__
        original(self, kind, error, trace, **options)

    setattr(traceback.TracebackException, "__init__", read)  # noqa: B010
