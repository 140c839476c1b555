"""A stand-in for a training: a real process with a real run folder, ring and control socket.

Reads one order a line from stdin, answers each with one line on stdout. No torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tuimon.feed import channel, registry
from tuimon.feed.codec import encode
from tuimon.feed.ring import RingWriter
from tuimon.model.commands import Request
from tuimon.model.records import (
    HELD,
    PAUSED,
    RUNNING,
    CommandState,
    Goodbye,
    Hello,
    LayerTable,
    Record,
    Step,
)

WORDS = {"running": RUNNING, "paused": PAUSED, "held": HELD}


class Writer:
    """The run and what it has published."""

    def __init__(self, capacity_bytes: int) -> None:
        self.info = registry.create_run(name="stand-in", argv=["stand-in.py"])
        self.capacity_bytes = capacity_bytes
        self.step = 0
        self.state = RUNNING
        self.ring = self._create()
        self.server = channel.ControlServer(self.info.control, self.on_request)
        self.server.start()

    def _create(self) -> RingWriter:
        ticks = self.info.ranks[0].start_ticks
        return RingWriter.create(self.info.ring(), self.capacity_bytes, start_ticks=ticks)

    def publish(self, record: Record) -> None:
        assert self.ring.publish(encode(record))

    def begin(self) -> None:
        rank = self.info.ranks[0]
        self.publish(Hello(1, self.info.id, "stand-in", self.info.host, rank.pid, total_steps=1000))
        self.publish(LayerTable(epoch=1, names=["a.weight", "b.weight"]))

    def steps(self, count: int) -> None:
        for _ in range(count):
            norms = b"\0\0\x80?" * 2
            self.publish(
                Step(self.step, time.time_ns(), epoch=1, loss=1.0, grad_norm=2.0, norms=norms)
            )
            self.step += 1
        self.ring.set_state(self.state, self.step - 1)

    def word(self, name: str) -> None:
        self.state = WORDS[name]
        self.ring.set_state(self.state, self.step - 1)

    def replace(self) -> None:
        self.ring.close()
        self.ring = self._create()
        self.begin()

    def goodbye(self, kind: str) -> None:
        self.publish(Goodbye(kind, 0 if kind == "ok" else 1, "as told", self.step - 1, time.time()))

    def on_request(self, request: Request) -> CommandState:
        state = CommandState(
            request.id, request.command.title, "accepted", request.by, request.asked_at_s
        )
        self.publish(state)
        self.publish(
            CommandState(request.id, request.command.title, "applied", step=self.step, new="yes")
        )
        return state


def main() -> None:
    writer = Writer(int(sys.argv[1]))
    writer.begin()
    orders: dict[str, Callable[[str], None]] = {
        "steps": lambda text: writer.steps(int(text)),
        "word": writer.word,
        "goodbye": writer.goodbye,
        "replace": lambda _: writer.replace(),
        "garbage": lambda _: None if writer.ring.publish(b"\xc1garbage") else sys.exit(9),
    }
    print(writer.info.id, flush=True)
    for line in sys.stdin:
        order, _, text = line.strip().partition(" ")
        orders[order](text)
        print("done", flush=True)
    writer.server.close()


if __name__ == "__main__":
    main()
