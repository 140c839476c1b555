"""What the viewer's data costs: a window of a short and of a very long history, and one append.

    python -m tests.bench.bench_series

Ratios in one run, interleaved, medians. Never a gate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from tuimon.view.heat import Heat
from tuimon.view.series import Series

SHORT, LONG = 10**4, 10**7
COLUMNS = 400  # dots of a chart across the widest screen in use
ROUNDS = 200
LAYERS = 10_000
ROWS = 36


def _series(length: int) -> Series:
    values = np.random.default_rng(0).normal(size=length).astype(np.float32)
    values[:: max(1, length // 7)] = np.nan
    series = Series("loss")
    series.extend(np.arange(length), values)
    return series


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _frame(series: Series) -> None:
    """One new sample and the whole history, as a live chart asks for it."""
    series.append((series.last_step or 0) + 1, 1.0)
    series.envelope(0, (series.last_step or 0) + 1, COLUMNS)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    short, long = _series(SHORT), _series(LONG)
    first = _seconds(lambda: long.envelope(0, LONG, COLUMNS))
    pairs = [
        (_seconds(lambda: _frame(short)), _seconds(lambda: _frame(long))) for _ in range(ROUNDS)
    ]
    at_short = statistics.median(pair[0] for pair in pairs)
    at_long = statistics.median(pair[1] for pair in pairs)

    fresh = Series("loss")
    append = _seconds(lambda: [fresh.append(i, 1.0) for i in range(100_000)]) / 100_000

    heat = Heat(LAYERS)
    norms = np.exp2(np.random.default_rng(0).normal(size=(16, LAYERS))).astype(np.float32)
    appends = [_seconds(lambda i=i: heat.append(i, norms[i % 16])) for i in range(600)]
    size = LAYERS // ROWS
    groups = [tuple(range(row * size, (row + 1) * size)) for row in range(ROWS)]
    build = _seconds(lambda: heat.cells(groups, 0, 600, 118))
    cells = statistics.median(
        _seconds(lambda: heat.cells(groups, 480, 600, 118)) for _ in range(ROUNDS)
    )

    print(f"{'what':58} {'µs':>9}  ratio")
    for what, seconds, ratio in (
        (f"frame of {SHORT:,} samples, {COLUMNS} columns", at_short, 1.0),
        (f"frame of {LONG:,} samples, {COLUMNS} columns", at_long, at_long / at_short),
        (f"first look at {LONG:,} samples", first, first / at_short),
        ("append one sample", append, append / at_short),
        (f"heat: append a step of {LAYERS:,} layers", statistics.median(appends), None),
        (f"heat: slowest of {len(appends)} appends", max(appends), None),
        (f"heat: {ROWS} folded rows, first time", build, None),
        (f"heat: {ROWS} folded rows, again", cells, None),
    ):
        shown = "" if ratio is None else f"{ratio:8.2f}"
        print(f"{what:58} {seconds * 1e6:9.1f} {shown}")


if __name__ == "__main__":
    main()
