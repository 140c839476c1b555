"""The ledger of a run as lines of JSON: every request with what became of it, and back again.

Pure: bytes in, plain data out. What a file says is typed data of known commands, or it is refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec

from tuimon.model.commands import (
    MAX_UNDONE,
    AnyCommand,
    Command,
    Undo,
    title_words,
    undone_as,
)
from tuimon.model.records import CommandState
from tuimon.model.text import plain
from tuimon.model.units import json_number

SCHEMA = "tuimon.ledger/1"
MAX_ASKED_BYTES = 8 << 10  # a longer one is a dump of very many layers, which is not repeated
MAX_LINE_BYTES = 64 << 10
MAX_ENTRIES = 10_000
MAX_STEP = 1 << 53  # larger integers are not exact in every reader of JSON
FINAL_STATES = ("applied", "refused", "expired")
CLOSED = "closed"  # state of the last line, after which nothing comes
_MAX_ID = 64
_MAX_WORDS = 64  # of a command line

_KINDS: dict[str, type[Command]] = {kind.__name__: kind for kind in get_args(AnyCommand)}
_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)


class NotALedger(ValueError):
    """Why the bytes are no ledger that can be used; the message is half a sentence."""


class Kept(msgspec.Struct, frozen=True):
    """What could be read of a ledger.

    Attributes:
        states: every stage of every request, in order.
        damaged: lines that could not be read.
        is_closed: the run's end was written, so that nothing is missing behind.
    """

    states: tuple[CommandState, ...] = ()
    damaged: int = 0
    is_closed: bool = False


class Head(msgspec.Struct, frozen=True):
    """The first line: what the file is, and of which run."""

    schema: str
    run: str
    name: str = ""
    host: str = ""
    argv: list[str] = []
    started_at: str | None = None


class Line(msgspec.Struct, frozen=True):
    """One stage in the life of one request."""

    id: str
    command: str
    state: str
    step: int | None = None
    arguments: dict[str, Any] | None = None  # None where they were too long to keep
    words: str = ""
    old: str | None = None
    new: str | None = None
    reason: str = ""
    by: str = ""
    asked_at: str | None = None


class Intervention(msgspec.Struct, frozen=True):
    """A command that an earlier run has carried out, and the update at which it did.

    Attributes:
        undoes: id of what an undo has taken back.
    """

    id: str
    step: int
    command: AnyCommand
    by: str
    undoes: str = ""


class Ledger(msgspec.Struct, frozen=True):
    """What a file says.

    Attributes:
        applied: in the order in which they took effect.
        unknown: kinds of commands that were carried out, and whose arguments were not kept.
    """

    run: str
    applied: tuple[Intervention, ...]
    unknown: tuple[str, ...] = ()


_heads = msgspec.json.Decoder(Head)
_lines = msgspec.json.Decoder(Line)


def asked_of(command: AnyCommand) -> bytes:
    """A command as `CommandState.asked` carries it."""
    payload = _encoder.encode(command)
    return payload if len(payload) <= MAX_ASKED_BYTES else b""


def arguments_of(state: CommandState) -> dict[str, Any] | None:
    """What was asked for, by name, for JSON; None where it is not known."""
    try:
        command = _commands.decode(state.asked)
    except (msgspec.DecodeError, ValueError):
        return None
    fields = command.__struct_fields__
    return {name: _jsonable(getattr(command, name)) for name in fields}


def head_bytes(
    *, run: str, name: str, host: str, argv: Sequence[str], started_at_s: float
) -> bytes:
    """The first line of a ledger."""
    head = Head(
        SCHEMA,
        plain(run, _MAX_ID),
        plain(name, 200),
        plain(host, 200),
        [plain(word, 200) for word in argv[:_MAX_WORDS]],
        iso(started_at_s),
    )
    return _dumped(head)


def end_bytes() -> bytes:
    """The last line of a ledger that is complete."""
    return _dumped(Line(id="-", command="", state=CLOSED))


def line_bytes(state: CommandState) -> bytes:
    """One stage as a line; safe to print as it is."""
    return _dumped(
        Line(
            id=plain(state.id, _MAX_ID),
            command=plain(state.command, 40),
            state=plain(state.state, 20),
            step=state.step,
            arguments=arguments_of(state),
            words=plain(state.words, 200),
            old=None if state.old is None else plain(state.old),
            new=None if state.new is None else plain(state.new),
            reason=plain(state.reason),
            by=plain(state.by, 200),
            asked_at=iso(state.asked_at_s),
        )
    )


def iso(unix_s: float) -> str | None:
    """A time as the report and the ledger write it; None where it is not known."""
    if not 0 < unix_s < 1e11:
        return None
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def kept_in(data: bytes) -> Kept:
    """What is in a file that may be damaged; what cannot be read is left out and counted."""
    found: list[CommandState] = []
    damaged, is_closed = 0, False
    for number, raw in enumerate(data.splitlines()):
        try:
            line = _lines.decode(raw)
        except (msgspec.DecodeError, ValueError, RecursionError):
            damaged += number > 0 or not _is_head(raw)
            continue
        if line.state == CLOSED:
            is_closed = True
            continue
        command = _typed(line)
        found.append(
            CommandState(
                id=line.id,
                command=line.command,
                state=line.state,
                by=line.by,
                asked_at_s=_unix(line.asked_at),
                step=line.step,
                old=line.old,
                new=line.new,
                reason=line.reason,
                words=line.words,
                asked=b"" if isinstance(command, str) else asked_of(command),
            )
        )
    return Kept(tuple(found), damaged, is_closed)


def parse(data: bytes) -> Ledger:
    """What a whole file says has been applied.

    Raises:
        NotALedger: it is something else, damaged, or says what no training can do.
    """
    rows = data.split(b"\n")
    if rows.pop() != b"":
        raise NotALedger("its last line is cut off; remove that line to use the rest")
    if not rows:
        raise NotALedger("it is empty")
    run = plain(head_of(rows[0]).run, _MAX_ID)
    newest: dict[str, Intervention] = {}
    unknown: list[str] = []
    for number, line in _numbered(rows[1:]):
        if line.state != "applied":
            continue
        if line.arguments is None:
            unknown.append(title_words(plain(line.command, 40)))
            continue
        found = _intervention(number, line)
        # Every rank tells that it has carried it out.
        if newest.setdefault(line.id, found) != found:
            raise NotALedger(f"line {number} applies the same request in another way")
        if len(newest) > MAX_ENTRIES:
            raise NotALedger(f"it has more than {MAX_ENTRIES:,} interventions")
    ordered = sorted(_with_undone(newest.values()), key=lambda each: each.step)
    return Ledger(run, tuple(ordered), tuple(unknown))


def _with_undone(applied: Iterable[Intervention]) -> Iterator[Intervention]:
    """The same, where each undo says what it took back.

    Applied in this order; by their steps, a change of clipping may come behind one of rates that
    it came before, so that the newest of all would be another.
    """
    standing: deque[tuple[str, str]] = deque(maxlen=MAX_UNDONE)
    for each in applied:
        if kind := undone_as(each.command):
            standing.append((kind, each.id))
        if not isinstance(each.command, Undo):
            yield each
            continue
        wanted = each.command.of
        found = next((one for one in reversed(standing) if wanted in ("", one[0])), None)
        if found is None:
            raise NotALedger(f"the undo at step {each.step:,} takes back what is not in it")
        standing.remove(found)
        yield msgspec.structs.replace(each, command=Undo(found[0]), undoes=found[1])


def in_words(kinds: Sequence[str]) -> str:
    """Kinds of commands and how many of each: "2 pause, 1 resume"."""
    return ", ".join(f"{count} {words}" for words, count in Counter(kinds).items())


def _is_head(row: bytes) -> bool:
    try:
        _heads.decode(row[:MAX_LINE_BYTES])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def head_of(row: bytes) -> Head:
    """What the first line of a ledger says.

    Raises:
        NotALedger: it is something else, or of another version.
    """
    try:
        head = _heads.decode(row[:MAX_LINE_BYTES])
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise NotALedger("its first line is not that of a ledger") from None
    if head.schema != SCHEMA:
        raise NotALedger(f"it says {plain(head.schema, 40)!r}, this version reads {SCHEMA!r}")
    return head


def _numbered(rows: Sequence[bytes]) -> Iterator[tuple[int, Line]]:
    for number, row in enumerate(rows, 2):
        if len(row) > MAX_LINE_BYTES:
            raise NotALedger(f"line {number} has {len(row):,} bytes")
        try:
            line = _lines.decode(row)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise NotALedger(f"line {number} is damaged: {plain(str(error), 80)}") from None
        if not 1 <= len(line.id) <= _MAX_ID:
            raise NotALedger(f"line {number} has no usable id")
        yield number, line


def _intervention(number: int, line: Line) -> Intervention:
    if line.step is None or not 0 <= line.step <= MAX_STEP:
        raise NotALedger(f"line {number} names no step")
    command = _typed(line)
    if isinstance(command, str):
        raise NotALedger(f"line {number}: {command}")
    if problem := command.problem():
        raise NotALedger(f"line {number}: {plain(problem, 120)}")
    return Intervention(line.id, line.step, command, plain(line.by, 200))


def _typed(line: Line) -> AnyCommand | str:
    """The command that a line speaks of, or why there is none."""
    kind = _KINDS.get(line.command)
    if kind is None:
        return f"the command {plain(line.command, 40)!r} is unknown"
    fields, given = kind.__struct_fields__, line.arguments or {}
    if unknown := [name for name in given if name not in fields]:
        return f"{line.command} takes no {plain(unknown[0], 40)!r}"
    known = msgspec.structs.fields(kind)
    if missing := [each.name for each in known if each.required and each.name not in given]:
        return f"{line.command} lacks {missing[0]}"
    values = [given[each.name] if each.name in given else _usual(each) for each in known]
    try:
        made: AnyCommand = msgspec.convert([kind.__struct_config__.tag, *values], AnyCommand)
        return made
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        return f"{line.command}: {plain(str(error), 80)}"


def _usual(field: msgspec.structs.FieldInfo) -> Any:
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


def _unix(text: str | None) -> float:
    try:
        return 0.0 if text is None else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _jsonable(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else json_number(value)
    return value


def _dumped(row: Head | Line) -> bytes:
    # All ASCII, so that a terminal that is shown the file as it is meets nothing but letters.
    return json.dumps(msgspec.to_builtins(row), allow_nan=False).encode() + b"\n"
