"""A training without torch: a real process, run folder, ring and scribe, told by stdin what to do.

Prints its run folder, then after each line it obeyed "ok". Lines: `steps N`, `bad` (a step with
NaN), `ask` (an accepted command), `flood N` (steps without waiting for anybody), `bye KIND CODE`,
`exit CODE`. The first argument is the report, "-" for none.
"""

from __future__ import annotations

import math
import sys
import time

import msgspec

from tuimon.feed.codec import encode
from tuimon.feed.registry import RunInfo, create_run, save
from tuimon.feed.ring import RingWriter
from tuimon.model.records import (
    NAN,
    CommandState,
    Goodbye,
    Hello,
    LayerTable,
    Record,
    Step,
)
from tuimon.train.launch.attendant import start_scribe


class Training:
    def __init__(self, info: RunInfo, ring: RingWriter) -> None:
        self.ring = ring
        self.step = 0
        self.put(Hello(1, info.id, info.name, info.host, info.ranks[0].pid))
        self.put(LayerTable(0, ["weight", "bias"]))

    def put(self, record: Record) -> None:
        assert self.ring.publish(encode(record))

    def take_step(self, loss: float = 1.0, flags: bytes = b"\0\0") -> None:
        norm = math.nan if any(flags) else 1.0
        fields = {"loss": loss, "grad_norm": norm, "flags": flags, "norms": bytes(8)}
        self.put(Step(self.step, time.time_ns(), cost_s=0.001, step_s=0.1, **fields))
        self.ring.set_state(0, self.step)
        self.step += 1

    def obey(self, word: str, *rest: str) -> None:
        match word:
            case "steps" | "flood":
                for _ in range(int(rest[0])):
                    self.take_step()
            case "bad":
                self.take_step(math.nan, bytes([NAN, 0]))
            case "ask":
                self.put(CommandState("c1", "Pause", "accepted", "me", 1.5e9))
            case "asks":
                for number in map(str, range(int(rest[0]), int(rest[1]))):
                    self.put(CommandState(number, "Pause", "accepted", "me", 1.5e9))
                    self.put(CommandState(number, "Pause", "applied", "me", 1.5e9, self.step))
            case "bye":
                self.put(Goodbye(rest[0], int(rest[1]), "Boom: \x1b[1mno", self.step - 1))
            case "exit":
                sys.exit(int(rest[0]))


def main() -> None:
    report = None if sys.argv[1] == "-" else sys.argv[1]
    info = create_run(name="fake", argv=["fake.py"], report=report)
    capacity = 1 << 20
    ring = RingWriter.create(info.ring(), capacity, start_ticks=info.ranks[0].start_ticks)
    # `ls` must find the exit in the mirror too.
    save(msgspec.structs.replace(info, versions={"tuimon": "test"}))
    training = Training(info, ring)
    problem = start_scribe(info)
    assert not problem, problem
    print(info.folder, flush=True)
    for line in sys.stdin:
        training.obey(*line.split())
        print("ok", flush=True)


if __name__ == "__main__":
    main()
