"""A read-only viewer holds nothing that could send, and whatever is pressed, nobody is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tuimon.errors import Refused
from tuimon.feed import codec, registry
from tuimon.feed.channel import ControlServer
from tuimon.feed.registry import RunInfo
from tuimon.feed.ring import RingWriter
from tuimon.model.commands import Pause, Request
from tuimon.model.records import CommandState, LayerTable, Step
from tuimon.tui.app import TuimonApp, ViewerOptions
from tuimon.tui.draw.glyphs import BRAILLE
from tuimon.tui.draw.theme import FULL, Look
from tuimon.tui.keys.actions import ACTIONS
from tuimon.view import remote, source
from tuimon.view.session import Session, watch_run


class Asked:
    """A run whose training counts who asks it for something."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.info: RunInfo = registry.create_run(name="mine", argv=["x"])
        ticks = self.info.ranks[0].start_ticks
        self.ring = RingWriter.create(self.info.ring(), 1 << 18, start_ticks=ticks)
        self.ring.publish(codec.encode(LayerTable(epoch=1, names=["a.weight"], shapes=[[2]])))
        for step in range(5):
            norms = b"\0\0\x80?"
            record = Step(step, 1, epoch=1, loss=1.0, grad_norm=2.0, norms=norms)
            self.ring.publish(codec.encode(record))
        self.server = ControlServer(self.info.control, self.answer)
        self.server.start()

    def answer(self, request: Request) -> CommandState:
        self.requests.append(request)
        return CommandState(request.id, request.command.title, "accepted")


@pytest.fixture
def run() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.server.close()
    made.ring.close()


def held_by(root: Any) -> list[Any]:
    """Every object of ours that can be reached from here by attributes and containers."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif hasattr(each, "__closure__") and each.__closure__:
            waiting += [cell.cell_contents for cell in each.__closure__]
        elif type(each).__module__.startswith(("tuimon", "_queue", "queue")):
            waiting += vars(each).values() if hasattr(each, "__dict__") else []
        else:
            continue
        found[id(each)] = each
    return list(found.values())


def test_there_is_no_object_that_could_send(run: Asked) -> None:
    reading, sending = (watch_run(run.info, readonly=readonly) for readonly in (True, False))
    for session in (reading, sending):
        session.tick()
    commanding = source.CommandingRingSource | remote.CommandingRelaySource

    def outlets(session: Session) -> list[Any]:
        kinds = [each for each in held_by(session) if isinstance(each, commanding)]
        return kinds + [
            each
            for each in held_by(session)
            if callable(getattr(each, "send", None)) and each is not session
        ]

    assert outlets(sending), "the search finds what there is to find"
    assert outlets(reading) == []
    with pytest.raises(Refused, match="read-only"):
        reading.send(Pause())
    for session in (reading, sending):
        session.close()
    assert run.requests == []


async def test_whatever_is_pressed_nobody_is_asked(run: Asked) -> None:
    session = watch_run(run.info, readonly=True)
    look = Look(colours=FULL, glyphs=BRAILLE)
    options = ViewerOptions(readonly=True, hz=0.001, dump_folder=lambda _: "/nowhere")
    app = TuimonApp(session, look, clock=lambda: 100.0, options=options)
    async with app.run_test(size=(120, 40)) as pilot:
        app.refresh_picture()
        reaching = [action for action in ACTIONS if action.needs_training]
        assert len(reaching) > 10
        for action in reaching:
            for key in action.keys:
                await pilot.press(key)
                await pilot.press("enter")
                await pilot.press("escape")
        await pilot.pause()
        assert not app.bridge.is_sending
    session.close()
    assert run.requests == []
