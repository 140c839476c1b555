"""The thinned history: folding equals brute force, the file is atomic and read tolerantly."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuimon.feed.chronicle import MAX_HEAT_BYTES, Chronicle, logged_name
from tuimon.feed.history import (
    HAS_FINITE,
    HAS_NAN,
    HAS_NEG_INF,
    HAS_POS_INF,
    History,
    SeriesHistory,
    read_history,
    write_history,
)
from tuimon.feed.thinning import HeatFold, SeriesFold, flags_of
from tuimon.model.records import (
    NAN,
    NO_GRAD,
    UNMEASURED,
    CommandState,
    DeviceStats,
    Event,
    Goodbye,
    Hello,
    LayerTable,
    Loss,
    RingLost,
    Scalars,
    Step,
)

SAMPLES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e308, -1e308]),
)


def columns(series: SeriesHistory) -> dict[str, np.ndarray]:
    wide = {
        name: np.frombuffer(getattr(series, name), "<f8")
        for name in ("low", "high", "mean", "last")
    }
    return {
        **wide,
        "flags": np.frombuffer(series.flags, np.uint8),
        "count": np.frombuffer(series.count, "<u4"),
    }


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), SAMPLES), min_size=1, max_size=80),
    st.integers(0, 10**12),
)
def test_folding_a_series_equals_brute_force(moves, start):
    fold = SeriesFold(max_buckets=8)
    samples = []
    step = start
    for gap, value in moves:
        samples.append((step, value))
        fold.add(step, value)
        step += gap
    series = fold.snapshot()
    got = columns(series)

    assert len(series.flags) <= 8
    assert series.width & (series.width - 1) == 0
    assert series.newest_step == samples[-1][0]
    buckets: dict[int, list[float]] = {}
    for at, value in samples:
        buckets.setdefault((at - series.first_step) // series.width, []).append(value)
    for index in range(len(series.flags)):
        values = buckets.pop(index, [])
        finite = [value for value in values if math.isfinite(value)]
        assert got["count"][index] == len(finite)
        flags = 0
        for value in values:
            flags |= flags_of(value)
        assert got["flags"][index] == flags
        last = values[-1] if values else math.nan
        assert got["last"][index] == last or (math.isnan(last) and math.isnan(got["last"][index]))
        if finite:
            assert got["low"][index] == min(finite)
            assert got["high"][index] == max(finite)
            mean = math.fsum(value / len(finite) for value in finite)
            span = max(abs(value) for value in finite)
            assert abs(got["mean"][index] - mean) <= 1e-9 * span + 1e-300
        else:
            assert all(math.isnan(got[name][index]) for name in ("low", "high", "mean"))
    assert not buckets


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_folding_the_heat_equals_brute_force(data):
    layers = data.draw(st.integers(1, 5))
    fold = HeatFold(epoch=3, layers=layers, max_buckets=6)
    rows = []
    step = data.draw(st.integers(0, 1000))
    for _ in range(data.draw(st.integers(1, 40))):
        norms = data.draw(
            st.lists(st.floats(width=32), min_size=layers, max_size=layers).map(
                lambda values: np.array(values, "<f4")
            )
        )
        flags = np.array(
            data.draw(st.lists(st.integers(0, 63), min_size=layers, max_size=layers)), np.uint8
        )
        assert fold.add(step, norms.tobytes(), flags.tobytes())
        rows.append((step, norms, flags))
        step += data.draw(st.integers(1, 9))
    heat = fold.snapshot()
    got_norms = np.frombuffer(heat.norms, "<f4").reshape(-1, layers)
    got_flags = np.frombuffer(heat.flags, np.uint8).reshape(-1, layers)

    want_norms = np.full_like(got_norms, np.nan)
    want_flags = np.zeros_like(got_flags)
    for at, norms, flags in rows:
        index = (at - heat.first_step) // heat.width
        usable = np.isfinite(norms) & ((flags & (NO_GRAD | 32)) == 0)
        want_norms[index] = np.fmax(want_norms[index], np.where(usable, norms, np.nan))
        want_flags[index] |= flags
    assert len(got_norms) <= 6
    assert np.array_equal(got_norms, want_norms, equal_nan=True)
    assert np.array_equal(got_flags, want_flags)


def test_a_far_jump_keeps_what_was_there():
    fold = SeriesFold(max_buckets=4)
    fold.add(0, math.nan)
    fold.add(2**61, 1.0)
    got = columns(fold.snapshot())
    assert got["flags"][0] == HAS_NAN
    assert got["flags"][-1] == HAS_FINITE


def test_a_step_before_the_first_counts_as_the_first():
    fold = SeriesFold()
    fold.add(10, 1.0)
    fold.add(9, -math.inf)
    series = fold.snapshot()
    assert columns(series)["flags"].tolist() == [HAS_FINITE | HAS_NEG_INF]


def test_heat_of_ten_thousand_layers_stays_within_its_bytes():
    layers = 10_000
    chronicle = Chronicle("r")
    norms = np.ones(layers, "<f4").tobytes()
    for epoch in range(4):
        for step in range(200):
            chronicle.add(Step(step=step, time_ns=0, epoch=epoch, norms=norms))
    history = snapshot(chronicle)
    total = sum(len(heat.norms) + len(heat.flags) for heat in history.heats)
    assert total <= MAX_HEAT_BYTES
    assert history.heats[-1].epoch == 3


def snapshot(chronicle: Chronicle, **lost: int) -> History:
    return chronicle.snapshot(up_to_sequence=7, scribe_sequence=5, written_at_s=1.5, lost=lost)


TABLE = LayerTable(epoch=1, names=["a", "b"])
RUN = (
    Hello(1, "abc", "net", "here", 42),
    LayerTable(epoch=0, names=["old"]),
    TABLE,
    Step(0, 0, epoch=1, loss=2.0, grad_norm=1.0, lrs=[0.1, None, 0.3], loss_scale=8.0),
    Loss(1, math.nan),
    Step(
        step=1,
        time_ns=0,
        epoch=1,
        loss=math.nan,
        grad_norm=math.inf,
        loss_scale=4.0,
        skipped=True,
        norms=np.array([1, np.nan], "<f4").tobytes(),
        flags=bytes([0, NAN]),
        cost_s=0.1,
        step_s=1.0,
    ),
    Step(0, 0, optimizer=1, loss=5.0),
    DeviceStats(1, epoch=1, grad_norm=-math.inf),
    Scalars(1, {"acc": 0.5, "loss": 9.0}),
    Event(1, 0.0, "info", "amp-skip", "skipped"),
    CommandState("c1", "Pause", "accepted"),
    CommandState("c1", "Pause", "applied", step=1),
    RingLost(3, "too large"),
    Goodbye("ok", 0),
)


@pytest.fixture
def history(tmp_path: Path) -> History:
    chronicle = Chronicle("abc")
    for record in RUN:
        chronicle.add(record)
    assert chronicle.overhead_frac == pytest.approx(0.1)
    path = tmp_path / "history.bin"
    write_history(path, snapshot(chronicle, overrun=2))
    read = read_history(path)
    assert read is not None
    return read


def test_a_late_viewer_gets_every_series(history: History):
    assert set(history.series) == {
        *("loss", "grad_norm", "lr", "lr/2", "loss_scale", "skipped", "step_s"),
        *("loss@1", "acc", "log/loss"),
    }
    assert columns(history.series["loss"])["flags"].tolist() == [HAS_FINITE, HAS_NAN]
    both = HAS_POS_INF | HAS_NEG_INF
    assert columns(history.series["grad_norm"])["flags"].tolist() == [HAS_FINITE, both]
    assert columns(history.series["loss@1"])["last"].tolist() == [5.0]
    assert columns(history.series["log/loss"])["last"].tolist() == [9.0]


def test_a_late_viewer_gets_the_newest_of_the_rest(history: History):
    assert (history.run_id, history.up_to_sequence, history.scribe_sequence) == ("abc", 7, 5)
    assert history.tables == {1: TABLE}
    assert history.heats[0].epoch == 1
    assert (history.amp.skipped, history.amp.attempted) == (1, 2)
    assert (history.amp.scale_first, history.amp.scale_last) == (8.0, 4.0)
    assert [state.state for state in history.commands] == ["applied"]
    assert history.totals.lost == {"too large": 3, "overrun": 2}
    assert (history.totals.steps, history.totals.last_step) == (2, 1)
    assert history.goodbye == Goodbye("ok", 0)


def test_a_list_of_wrong_length_is_counted_not_folded():
    chronicle = Chronicle("r")
    chronicle.add(Step(0, 0, norms=bytes(8)))
    chronicle.add(Step(1, 0, norms=bytes(12)))
    assert snapshot(chronicle).totals.lost == {"layer mismatch": 1}


def test_every_optimizer_speaks_of_its_own_layers():
    chronicle = Chronicle("r")
    chronicle.add(LayerTable(0, ["g", "d"], optimizer_index=[1, 0]))
    for step, other in ((7, 0), (8, 1)):
        chronicle.add(
            Step(
                step, 0, norms=np.array([np.nan, 2], "<f4").tobytes(), flags=bytes([UNMEASURED, 0])
            )
        )
        chronicle.add(
            Step(
                other,
                0,
                optimizer=1,
                norms=np.array([np.nan, np.nan], "<f4").tobytes(),
                flags=bytes([NAN if other else 0, UNMEASURED]),
            )
        )
    heat = snapshot(chronicle).heats[0]
    assert heat.first_step == 7
    assert np.frombuffer(heat.flags, np.uint8).reshape(-1, 2).tolist() == [[0, 0], [NAN, 0]]
    assert np.frombuffer(heat.norms, "<f4").reshape(-1, 2)[:, 1].tolist() == [2, 2]


@pytest.mark.parametrize("key", ["loss", "lr", "lr/3", "skipped"])
def test_a_logged_key_never_mixes_with_a_measured_series(key: str):
    assert logged_name(key) == f"log/{key}"
    assert logged_name(f"train/{key}") == f"train/{key}"


def test_a_history_that_is_not_whole_reads_as_none(tmp_path: Path):
    path = tmp_path / "history.bin"
    assert read_history(path) is None
    write_history(path, History("r", 1))
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:10],
        whole[:-1],
        whole[:30] + bytes([whole[30] ^ 1]) + whole[31:],
        whole[:8] + b"\x63" + whole[9:],
        b"x" * 200,
    ):
        path.write_bytes(damaged)
        assert read_history(path) is None
    path.write_bytes(whole)
    assert read_history(path) == History("r", 1)


def test_a_full_disk_leaves_the_old_history(tmp_path: Path):
    path = tmp_path / "history.bin"
    write_history(path, History("old", 1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            write_history(path, History("new" * 100, 2))
        except OSError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    old = read_history(path)
    assert old is not None
    assert old.run_id == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["history.bin"]
