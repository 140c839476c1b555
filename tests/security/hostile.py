"""Texts that would do something to a terminal, and records that hold them wherever text can be.

Run as a program it is a training of which everything is hostile: `hostile.py` prints its run folder
and waits for the end of its input.
"""

from __future__ import annotations

import sys
import time
import types
import unicodedata
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from tuimon.feed import channel, registry
from tuimon.feed.codec import encode
from tuimon.feed.ring import RingWriter
from tuimon.model.commands import Request
from tuimon.model.records import AnyRecord, CommandState, Event, Goodbye, LayerTable, Scalars, Step
from tuimon.train.launch.attendant import start_scribe

# Title, colour, place, clipboard, answers that a shell would read as typed, 8-bit sequences,
# overprinting, order of writing, line ends of other alphabets, tags that nobody sees.
SEQUENCES = (
    "\x1b]0;", "\x1b[35;7;9m", "\x1b[99;99H", "\x1b]52;c;", "\x1b[2J", "\x1bP+q", "\x1b[6n",
    "\x9b31m", "\x9d0;", "\x08\x08", "\x7f", "\x00", "\r\n", "\t", "\v", "\x85", "\u202e",
    "\u2066", "\u200f", "\u061c", "\u2028", "\u2029", "\ufeff", "\U000e0041", "\ue000",
)  # fmt: skip
BAD = "".join(f"{sequence}PWN" for sequence in SEQUENCES) + "\x07\x1b\\"
LONG = BAD + "x" * 1_000_000
_UNSAFE = ("Cc", "Cf", "Co", "Cn", "Zl", "Zp")


def unsafe_in(text: str) -> list[str]:
    """What in this text could do something; line ends are its own business."""
    return sorted({repr(c) for c in text if unicodedata.category(c) in _UNSAFE and c not in "\r\n"})


def filled(kind: Any, text: str) -> Any:
    """A value of this type with the text wherever text can be."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or kind is str:
        return text
    if origin is Literal:
        return parts[0]
    if origin in (Union, types.UnionType):
        return filled(next(part for part in parts if part is not type(None)), text)
    if origin is tuple and Ellipsis not in parts:
        return tuple(filled(part, text) for part in parts)
    if origin in (list, tuple):
        return origin([filled(parts[0], text)])
    if origin is dict:
        return {filled(parts[0], text): filled(parts[1], text)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(**{name: filled(hints[name], text) for name in kind.__struct_fields__})
    return {int: 1, float: 1.0, bool: False, bytes: b""}.get(kind)


def records(text: str) -> Iterator[Any]:
    """One record of every kind there is, but for those that end a run."""
    for kind in get_args(AnyRecord):
        if kind is not Goodbye:
            yield filled(kind, text)


class Training:
    """The process that publishes them."""

    def __init__(self) -> None:
        self.info = registry.create_run(name=BAD, argv=[BAD, LONG[:50_000]])
        ticks = self.info.ranks[0].start_ticks
        self.ring = RingWriter.create(self.info.ring(), 16 << 20, start_ticks=ticks)
        self.server = channel.ControlServer(self.info.control, self.answer)
        self.server.start()

    def publish(self, record: Any) -> None:
        assert self.ring.publish(encode(record)), type(record)

    def answer(self, request: Request) -> CommandState:
        state = CommandState(request.id, request.command.title, "accepted", BAD, 1.7e9, words=BAD)
        self.publish(state)
        ended = {"state": "applied", "old": BAD, "new": LONG[:100_000], "reason": BAD, "step": 3}
        self.publish(msgspec.structs.replace(state, **ended))
        return state

    def run(self) -> None:
        names = [BAD, f"{BAD}.weight", LONG]
        for record in records(BAD):
            self.publish(record)
        for record in (
            LayerTable(epoch=7, names=names, shapes=[[2]] * 3, dtypes=[BAD] * 3),
            Scalars(1, {BAD: 1.0, LONG: 2.0}),
            Event(1, time.time(), "critical", BAD, LONG, LONG),
        ):
            self.publish(record)
        for step in range(40):
            norms = b"\0\0\x80?" * 3
            self.publish(
                Step(step, time.time_ns(), epoch=7, loss=1.0, grad_norm=2.0, norms=norms, clip=BAD)
            )
        for record in records(BAD):
            if not isinstance(record, LayerTable):
                self.publish(record)
        self.ring.set_state(0, 40)


def main() -> None:
    training = Training()
    problem = start_scribe(training.info)
    assert not problem, problem
    training.run()
    print(training.info.folder, flush=True)
    sys.stdin.read()
    training.publish(Goodbye("exception", 1, LONG, 40, time.time()))
    training.server.close()


if __name__ == "__main__":
    main()
