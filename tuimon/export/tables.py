"""Rows into files of other programs: CSV by the standard library, Parquet by pyarrow.

A missing value is an empty cell or a null; NaN and infinities are written as what they are.
"""

from __future__ import annotations

import csv
import errno
import math
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tuimon.errors import UsageError
from tuimon.export.rows import COLUMNS, INTEGERS, TRUTHS, WORDS, Row

_GROUP_ROWS = 8192


def write_csv(rows: Iterable[Row], folder: Path) -> dict[Path, int]:
    """A file a table; how many rows each has.

    Raises:
        OSError: a file cannot be written.
    """
    counts: dict[Path, int] = {}
    with ExitStack() as stack:
        writers: dict[str, Any] = {}
        for row in rows:
            path = folder / f"{row.table}.csv"
            if row.table not in writers:
                file = stack.enter_context(path.open("x", encoding="utf-8", newline=""))
                writers[row.table] = csv.writer(file)
                writers[row.table].writerow(COLUMNS[row.table])
                counts[path] = 0
            cells = [_cell(row.values.get(name)) for name in COLUMNS[row.table]]
            writers[row.table].writerow(cells)
            counts[path] += 1
    return counts


def write_parquet(rows: Iterable[Row], folder: Path) -> dict[Path, int]:
    """A file a table; how many rows each has.

    Raises:
        UsageError: pyarrow is not installed.
        OSError: a file cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError('Parquet needs pyarrow: pip install "tuimon[export]"') from error

    def schema(table: str) -> Any:
        return pyarrow.schema([(name, _type(name, pyarrow)) for name in COLUMNS[table]])

    counts: dict[Path, int] = {}
    with ExitStack() as stack:
        writers: dict[str, Any] = {}
        full: dict[str, list[dict[str, Any]]] = {}

        def flush(table: str) -> None:
            writers[table].write_table(pyarrow.Table.from_pylist(full[table], schema(table)))
            full[table] = []

        for row in rows:
            path = folder / f"{row.table}.parquet"
            if row.table not in writers:
                file = stack.enter_context(path.open("xb"))
                made = parquet.ParquetWriter(file, schema(row.table))
                writers[row.table] = stack.enter_context(made)
                full[row.table], counts[path] = [], 0
            full[row.table].append(row.values)
            counts[path] += 1
            if len(full[row.table]) >= _GROUP_ROWS:
                flush(row.table)
        for table in full:
            flush(table)
    return counts


@contextmanager
def into(folder: Path, suffix: str) -> Iterator[Path]:
    """A place to write tables in; they come into the folder when all of them are whole.

    Args:
        folder: where they belong; made where it is not there.
        suffix: of their names.

    Raises:
        OSError: one of that name is there already, or there is no room; nothing has changed.
    """
    there = [folder / f"{table}{suffix}" for table in COLUMNS]
    for file in there:
        if file.exists():
            raise FileExistsError(errno.EEXIST, "it is there already", str(file))
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tuimon-", dir=folder) as draft:
            yield Path(draft)
            for file in Path(draft).iterdir():
                file.rename(folder / file.name)
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _type(name: str, pyarrow: Any) -> Any:
    if name in INTEGERS:
        return pyarrow.int64()
    if name in WORDS:
        return pyarrow.string()
    return pyarrow.bool_() if name in TRUTHS else pyarrow.float64()
