"""`tuimon scan`: whether weights are healthy, as a table for people or JSON for scripts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from tuimon.errors import EXIT_FINDINGS, EXIT_OK, EXIT_USAGE, UsageError
from tuimon.inspect import comparing, scan
from tuimon.inspect.bisecting import Bisected, first_bad, in_order
from tuimon.inspect.checkpoint import Unreadable
from tuimon.inspect.places import places_of
from tuimon.inspect.scan import ScannedFile, Scanner
from tuimon.inspect.statistics import Measured
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, number, percent, size_bytes

MAX_ROWS = 40  # of a table; the JSON has all
_NAME_CHARS = 60
_BAR_EVERY_S = 0.1
_BAR_CELLS = 24


def scan_paths(
    paths: tuple[str, ...], *, as_json: bool, with_all: bool, serve: str | None, trusted: bool
) -> int:
    """Look at every tensor of every file; the exit status."""
    with _Bar() as bar, Scanner(trusts_files=trusted, progress=bar.show) as scanner:
        files = []
        for place in scan.all_places(paths):
            scanned = scanner.scan(place)
            bar.clear()
            files.append(scanned)
            if not as_json:
                _print_file(scanned, serve, with_all=with_all)
    if as_json:
        click.echo(json.dumps(scan.document(files, serve=serve, with_all=with_all)))
    elif len(files) > 1:
        _print_summary(files, serve)
    return status_of(files, serve)


def status_of(files: list[ScannedFile], serve: str | None) -> int:
    """6 for anything unhealthy, else 2 for what could not be read, else 0."""
    if any(each.unhealthy(serve) for each in files):
        return EXIT_FINDINGS
    return EXIT_USAGE if any(each.error is not None for each in files) else EXIT_OK


def find_first_bad(
    paths: tuple[str, ...], *, as_json: bool, with_all: bool, serve: str | None, trusted: bool
) -> int:
    """Find the first bad one of ordered checkpoints; the exit status.

    Raises:
        UsageError: there is nothing to search, or none of them can be read.
    """
    try:
        ordered = in_order(list(paths))
    except OSError as error:
        raise UsageError(f"{plain(paths[0], 200)} cannot be opened: {error.strerror}") from error
    if not ordered:
        raise UsageError(f"{plain(paths[0], 200)} holds no checkpoints; name their folder")
    seen: dict[int, list[ScannedFile]] = {}
    with _Bar() as bar, Scanner(trusts_files=trusted, progress=bar.show) as scanner:

        def judge(index: int) -> bool | str:
            files = seen[index] = [scanner.scan(place) for place in places_of(ordered[index])]
            bar.clear()
            problem = next((each.error for each in files if each.error), None)
            bad = any(each.unhealthy(serve) for each in files)
            return problem if problem and not bad else not bad

        found = first_bad(len(ordered), judge)
    if found.first_bad is None and found.last_good is None:
        why = next(iter(found.unreadable.values()))
        raise UsageError(f"none of {len(ordered)} checkpoints can be read: the last {why}")
    files = [] if found.first_bad is None else seen[found.first_bad]
    if as_json:
        words = scan.document(files, serve=serve, with_all=with_all)
        click.echo(json.dumps({**words, **_bisected_object(found, ordered)}))
    else:
        _print_bisected(found, ordered, files, serve, with_all=with_all)
    return EXIT_OK if found.first_bad is None else EXIT_FINDINGS


def _bisected_object(found: Bisected, ordered: list[Path]) -> dict[str, Any]:
    def name(place: int | None) -> str | None:
        return None if place is None else str(ordered[place])

    return {
        "first_bad": name(found.first_bad),
        "last_good": name(found.last_good),
        "read": found.read,
        "of": len(ordered),
        "unreadable": {str(ordered[place]): why for place, why in found.unreadable.items()},
    }


def _print_bisected(
    found: Bisected,
    ordered: list[Path],
    files: list[ScannedFile],
    serve: str | None,
    *,
    with_all: bool,
) -> None:
    for place, why in sorted(found.unreadable.items()):
        click.echo(f"{_shown(ordered[place])}: {plain(why)}; passed over")
    for each in files:
        if each.error or not each.is_healthy(serve):
            _print_file(each, serve, with_all=with_all)
    read = f"read {found.read} of {len(ordered)}"
    if found.first_bad is None:
        assert found.last_good is not None
        click.echo(f"the last checkpoint, {_shown(ordered[found.last_good])}, is healthy; {read}")
        return
    good = found.last_good
    before = "there is none before it" if good is None else f"{_shown(ordered[good])} is healthy"
    click.echo(f"first bad: {_shown(ordered[found.first_bad])}; {before}; {read}")


def print_difference(
    first: str, second: str, *, as_json: bool, with_all: bool, trusted: bool
) -> int:
    """Print what changed from one checkpoint to another; the exit status.

    Raises:
        UsageError: one of them cannot be read.
    """
    try:
        found = comparing.difference(first, second, trusts_files=trusted)
    except Unreadable as error:
        raise UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps(comparing.difference_object(found, with_all=with_all)))
        return EXIT_OK
    changed = [each for each in found.changes if each.is_change]
    shown = found.changes if with_all else changed
    rows = [_change_cells(each) for each in sorted(shown, key=_by_change)]
    if rows:
        head = ("TENSOR", "DTYPE", "SHAPE", "MAX ABS", "RELATIVE", "NON-FINITE", "BECAME")
        _print_table(head, rows, with_all=with_all)
    for word, names in (("missing", found.missing), ("added", found.added)):
        for name in names[: None if with_all else MAX_ROWS]:
            click.echo(f"{word}: {plain(name, _NAME_CHARS)}")
    same = len(found.changes) - len(changed)
    click.echo(
        f"{len(changed)} changed, {same} the same, {len(found.missing)} missing, "
        f"{len(found.added)} added"
    )
    return EXIT_OK


def _by_change(change: comparing.Change) -> tuple[bool, float]:
    return not change.became, -(change.relative or change.max_abs or 0.0)


def _change_cells(change: comparing.Change) -> tuple[str, ...]:
    a, b = change.non_finite
    return (
        plain(change.name, _NAME_CHARS),
        change.dtype,
        _shape(change.shape),
        number(change.max_abs),
        number(change.relative),
        f"{count(a)} → {count(b)}" if a or b else "0",
        change.became,
    )


def _print_file(scanned: ScannedFile, serve: str | None, *, with_all: bool) -> None:
    path = _shown(scanned.path)
    if scanned.error is not None:
        click.echo(f"tuimon: {path} {plain(scanned.error)}", err=True)
    if scanned.error is not None and not scanned.tensors:
        return
    bad = scanned.unhealthy(serve)
    verdict = f"{len(bad)} unhealthy" if bad else "healthy"
    of = f"{len(scanned.tensors):,} tensors, {size_bytes(scanned.size_bytes)}"
    click.echo(f"{path}: {verdict}{' of ' if bad else ', '}{of}{_margin(scanned, serve)}")
    for note in scanned.notes:
        click.echo(f"  note: {plain(note)}")
    if odd := _odd(scanned, bad):
        click.echo(f"  note: {odd}")
    if shown := (scanned.tensors if with_all else bad):
        rows = [_cells(each, serve or "float16") for each in shown]
        head = ("TENSOR", "DTYPE", "SHAPE", "NAN", "+INF", "-INF", "ABSMAX", "RMS", "ZEROS",
                "CONST ROWS", f"ROOM {(serve or 'float16').upper()}")  # fmt: skip
        _print_table(head, rows, with_all=with_all)


def _margin(scanned: ScannedFile, serve: str | None) -> str:
    served = serve or "float16"
    least = scan.narrowest(scanned, served)
    if least is None:
        return ""
    return f", least room in {served} {_room(least, served)} ({plain(least.name, _NAME_CHARS)})"


def _odd(scanned: ScannedFile, bad: list[Measured]) -> str:
    """What is no fault by itself, and worth a look."""
    weights = [
        each
        for each in scanned.tensors
        if len(each.shape) > 1
        and each not in bad
        and not each.is_mask
        and not scan.is_of_optimizer(each.name)
    ]
    dead = [each.name for each in weights if each.zero_frac == 1.0]
    same = [each.name for each in weights if each.constant_rows and each.zero_frac != 1.0]
    said = [
        f"{len(names)} {words}, such as {plain(names[0], _NAME_CHARS)}"
        for names, words in ((dead, "all zero"), (same, "with constant rows"))
        if names
    ]
    return "; ".join(said)


def _print_summary(files: list[ScannedFile], serve: str | None) -> None:
    bad = sum(bool(each.unhealthy(serve)) for each in files)
    unread = sum(each.error is not None for each in files)
    tensors = sum(len(each.tensors) for each in files)
    size = sum(each.size_bytes for each in files)
    click.echo(
        f"{len(files)} files, {tensors:,} tensors, {size_bytes(size)}: "
        f"{bad} unhealthy, {unread} not read"
    )


def _cells(tensor: Measured, served: str) -> tuple[str, ...]:
    rows = tensor.constant_rows
    return (
        plain(tensor.name, _NAME_CHARS),
        tensor.dtype,
        _shape(tensor.shape),
        count(tensor.nan),
        count(tensor.posinf),
        count(tensor.neginf) + (" mask" if tensor.is_mask else ""),
        number(tensor.absmax),
        number(tensor.rms),
        percent(tensor.zero_frac),
        DASH if rows is None else f"{rows:,}/{tensor.shape[0]:,}",
        _room(tensor, served),
    )


def _room(tensor: Measured, served: str) -> str:
    room = tensor.headroom.get(served)
    return DASH if room is None else f"{number(room, 3)}×"


def _shape(shape: list[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]], *, with_all: bool) -> None:
    kept = rows if with_all else rows[:MAX_ROWS]
    lines = [head, *kept]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    left = 3  # name, dtype and shape are words; the rest are numbers
    for line in lines:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo(("  " + "  ".join(cells)).rstrip())
    if len(rows) > len(kept):
        click.echo(f"  … and {len(rows) - len(kept):,} more: --all or --json")


def _shown(path: Path | str) -> str:
    return plain(str(path), 300)


class _Bar:
    """One line on stderr that says how far a file is; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
        self._drawn_s = time.monotonic()  # a scan of a moment needs no bar
        self._is_drawn = False

    def show(self, path: str, done: int, total: int) -> None:
        """Draw, at most ten times a second."""
        now_s = time.monotonic()
        if not self._is_terminal or now_s - self._drawn_s < _BAR_EVERY_S:
            return
        self._drawn_s = now_s
        self._is_drawn = True
        frac = done / total if total else 1.0
        filled = round(frac * _BAR_CELLS)
        bar = "#" * filled + "-" * (_BAR_CELLS - filled)
        sizes = f"{size_bytes(done)} of {size_bytes(total)}"
        columns = 80
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(2).columns
        text = f"[{bar}] {frac * 100:3.0f}%  {sizes}  {plain(Path(path).name, 60)}"
        click.echo(f"\r\x1b[K{text[: columns - 1]}", err=True, nl=False)

    def clear(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._is_drawn = False

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
