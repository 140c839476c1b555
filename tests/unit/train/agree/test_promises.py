"""Where a training thread waits for an agreement, and where it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tuimon.model.commands import Pause, Request, SkipUpdate
from tuimon.train.agree.promises import Agreed, Promises


class Woken:
    def __init__(self) -> None:
        self.pending = self.settled = 0
        self.promises = Promises(self.on_pending, self.on_settled)

    def on_pending(self) -> None:
        self.pending += 1

    def on_settled(self) -> None:
        self.settled += 1


def agreed(place: int, number: int = 1) -> Agreed:
    return Agreed(number, place, Request(f"r{number}", "me", Pause()))


def beside(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_the_next_place_is_promised() -> None:
    woken = Woken()
    promises = woken.promises
    assert promises.promise() == 0  # nobody has come anywhere yet
    promises.settle(None)
    promises.place = 7
    assert promises.promise() == 8 and woken.pending == 2 and promises.pending
    promises.come_to(7)  # still before it: nobody waits
    assert promises.next() is None and promises.leave() and promises.pending
    promises.settle(agreed(9))
    promises.come_to(8)
    assert promises.next() is None and promises.leave()
    promises.come_to(9)
    assert not promises.leave()
    found = promises.next()
    assert found is not None and found.place == 9
    assert promises.leave() and not promises.pending and woken.settled == 2


def test_a_promised_place_is_waited_at() -> None:
    promises = Woken().promises
    promises.place = 3
    assert promises.promise() == 4
    passed = threading.Event()
    thread = beside(lambda: (promises.come_to(4), passed.set()))
    assert not passed.wait(0.05)
    promises.settle(agreed(4))
    thread.join(5)
    assert passed.is_set() and promises.next() is not None


def test_whoever_is_there_still_promises_that_place() -> None:
    promises = Woken().promises
    promises.come_to(5)
    assert promises.promise() == 5
    left = threading.Event()
    thread = beside(lambda: (promises.leave(), left.set()))
    assert not left.wait(0.05)
    promises.settle(agreed(5))
    thread.join(5)
    assert promises.next() is not None and promises.leave()
    assert promises.promise() == 6


def test_a_place_never_goes_back() -> None:
    """A closure clips after the gate of its own update."""
    promises = Woken().promises
    promises.come_to(9)
    promises.leave()
    promises.come_to(8)
    assert promises.place == 9


def test_who_is_stuck_takes_what_is_for_later() -> None:
    promises = Woken().promises
    promises.come_to(5)
    promises.settle(agreed(8, 1))
    promises.settle(agreed(8, 2))
    assert promises.next() is None
    first = promises.next(is_stuck=True)
    assert first is not None and first.number == 1


def test_giving_up_frees_everybody() -> None:
    promises = Woken().promises
    promises.settle(agreed(90))
    promises.place = 1
    promises.promise()
    thread = beside(lambda: promises.come_to(2))
    assert [each.place for each in promises.give_up()] == [90]
    thread.join(5)
    assert not thread.is_alive() and promises.leave() and not promises.pending


def test_what_ends_by_itself_is_not_given_up() -> None:
    promises = Woken().promises
    skip = Agreed(1, 4, Request("r1", "me", SkipUpdate()))
    for each in (skip, agreed(4, 2), Agreed(3, 4, Request("", "", SkipUpdate()), "not finite")):
        promises.settle(each)
    assert [each.number for each in promises.give_up()] == [2, 3]
    promises.come_to(2)
    assert promises.next() is None and promises.leave() and promises.pending
    promises.come_to(4)
    assert promises.next() == skip and promises.leave() and not promises.pending
