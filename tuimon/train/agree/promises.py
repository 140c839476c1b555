"""Where the training thread of one rank is, and what it has promised not to pass.

A place is twice the index of an update: there the script clips, and one more is its gate. The
agreeing thread writes promises and settles them; the training thread writes places.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tuimon.model import commands
from tuimon.model.commands import Request

WAIT_SLICE_S = 0.2
MAX_WAIT_S = 60.0  # the agreeing thread gives up long before; this is for one that is stuck


@dataclass(frozen=True)
class Agreed:
    """A command that all ranks carry out at the same place.

    Attributes:
        number: of the round in which it was agreed upon.
        held: why the training is to be held there; "" for a command.
    """

    number: int
    place: int
    request: Request
    held: str = ""


class Promises:
    """Shared by both threads of a rank; `_changed` guards everything but `place` and `pending`.

    The order of reads and writes makes the unlocked part safe: the agreeing thread sets `pending`,
    and calls `on_pending`, before it reads `place`; the training thread writes `place` before it
    looks at what `on_pending` has set.

    Attributes:
        place: the newest place that the training thread has come to.
        pending: there is something that it must look at in the next place.
    """

    def __init__(self, on_pending: Callable[[], None], on_settled: Callable[[], None]) -> None:
        self.place = -1
        self.pending = False
        self._changed = threading.Condition()
        self._on_pending = on_pending
        self._on_settled = on_settled
        self._limit: int | None = None  # the first place that must not be passed yet
        self._is_open = False  # the training thread will look once more before it goes on
        self._waiting: deque[Agreed] = deque()
        self._lost = False

    # --- the agreeing thread ----------------------------------------------------------------------

    def promise(self) -> int:
        """The next place at which a command can be carried out; it is not passed until settled."""
        with self._changed:
            self.pending = True
            self._on_pending()
            self._limit = self.place if self._is_open else self.place + 1
            return max(self._limit, 0)

    def settle(self, agreed: Agreed | None) -> None:
        """The promise is kept: this is what has come of it."""
        with self._changed:
            if agreed is not None:
                self._waiting.append(agreed)
            self._limit = None
            self.pending = bool(self._waiting)
            self._changed.notify_all()
        self._on_settled()

    def give_up(self) -> list[Agreed]:
        """Promise nothing any more; returns what will not be carried out.

        The others have carried out what was agreed upon, or will: so does this one, unless it
        would wait for somebody to end it.
        """
        with self._changed:
            left = [each for each in self._waiting if _is_endless(each)]
            self._waiting = deque(each for each in self._waiting if not _is_endless(each))
            self._limit, self._lost = None, True
            self.pending = bool(self._waiting)
            self._changed.notify_all()
        self._on_settled()
        return left

    @property
    def holds_up(self) -> bool:
        """Whether the training thread waits, or will soon, for something of ours."""
        return self._is_open or self.pending

    # --- the training thread ----------------------------------------------------------------------

    def come_to(self, place: int) -> None:
        """Be there, and look at everything agreed before leaving; waits for what is open."""
        with self._changed:
            self.place = max(self.place, place)
            self._is_open = True
            self._await()

    def leave(self) -> bool:
        """Go on; False when something was agreed about this place meanwhile."""
        with self._changed:
            self._await()
            if self._waiting and self._waiting[0].place <= self.place:
                return False
            self._is_open = False
            self.pending = bool(self._waiting) or self._limit is not None
            return True

    def next(self, *, is_stuck: bool = False) -> Agreed | None:
        """What is to be carried out now, in the order of agreement.

        Args:
            is_stuck: the training waits here for a decision, so that it comes to no other place:
                what was agreed for a later one is due.
        """
        with self._changed:
            due = self._waiting and (is_stuck or self._waiting[0].place <= self.place)
            return self._waiting.popleft() if due else None

    def _await(self) -> None:
        waited_s = 0.0
        while self._limit is not None and self._limit <= self.place and not self._lost:
            if not self._changed.wait(WAIT_SLICE_S):
                waited_s += WAIT_SLICE_S
            if waited_s > MAX_WAIT_S:
                self._lost = True


def _is_endless(agreed: Agreed) -> bool:
    """Whether the training waits after it for a command that no agreement can bring."""
    return bool(agreed.held) or isinstance(
        agreed.request.command, commands.Pause | commands.StepOnce
    )
