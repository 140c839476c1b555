"""The newest sample of every layer: kept by name, bounded, carried over by the history file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import decode, encode
from tuimon.feed.history import read_history, write_history
from tuimon.feed.samples import Samples
from tuimon.model.samples import (
    Activation,
    Activations,
    Governor,
    Histogram,
    ParameterSample,
    ParameterSamples,
)
from tuimon.view.frame import LIVE
from tuimon.view.late_start import apply_history
from tuimon.view.store import RunState, Standing

RECORDS = [
    Governor(4, 22, 0.004, 0.005),
    ParameterSamples(3, 0, [ParameterSample("a.weight", 1.0, 2.0, 3.0, 0.1, 9)]),
    ParameterSamples(4, 0, [ParameterSample("b.weight"), ParameterSample("a.weight", 5.0)]),
    Activations(4, [Activation("a", 2, 8, 0.5, 1.0, math.inf, 0.25, 0.0, "float16")], {"why": 2}),
    Histogram(4, "weight", "a.weight", 9, 9, b"\1\0\0\0" * 128, zeros=1, nan=2),
]


def filled() -> Samples:
    samples = Samples()
    for record in RECORDS:
        samples.add(record)
    return samples


def test_the_newest_sample_of_a_name_counts_with_its_step() -> None:
    samples = filled()
    assert samples.governor is not None and samples.governor.stride == 22
    assert samples.parameter("a.weight") == (4, ParameterSample("a.weight", 5.0))
    found = samples.activation("a")
    assert found is not None and found[0] == 4 and found[1].absmax == math.inf
    assert samples.histogram("weight", "a.weight") is RECORDS[-1]
    assert samples.parameter("c") is None and samples.histogram("gradient", "a.weight") is None
    assert samples.version == len(RECORDS)


def test_what_was_not_renewed_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuimon.feed.samples.MAX_NAMES", 2)
    monkeypatch.setattr("tuimon.feed.samples.MAX_HISTOGRAMS", 2)
    samples = Samples()
    for step, name in enumerate("abac"):
        samples.add(ParameterSamples(step, 0, [ParameterSample(name)]))
        samples.add(Activations(step, [Activation(name, 1, 1)]))
        samples.add(Histogram(step, "weight", name, 1, 1, b""))
    for name, kept in (("a", True), ("b", False), ("c", True)):
        assert (samples.parameter(name) is not None) is kept
        assert (samples.activation(name) is not None) is kept
        assert (samples.histogram("weight", name) is not None) is kept


def test_going_back_forgets_what_is_no_more() -> None:
    samples = filled()
    samples.cut(4)
    assert samples.records() == []
    again = filled()
    again.cut(5)
    assert again.records() == filled().records()


def test_records_bring_another_reader_to_the_same_knowledge() -> None:
    other = Samples()
    for record in filled().records():
        other.add(decode(encode(record)))
    for name in ("a.weight", "b.weight"):
        assert other.parameter(name) == filled().parameter(name)
    assert other.activation("a") == filled().activation("a")
    assert other.histogram("weight", "a.weight") == RECORDS[-1]


def test_a_late_viewer_sees_them_through_the_history_file(tmp_path: Path) -> None:
    chronicle = Chronicle("r")
    for record in RECORDS:
        chronicle.add(record)
    history = chronicle.snapshot(up_to_sequence=5, scribe_sequence=0, written_at_s=0.0)
    write_history(tmp_path / "history.bin", history)
    late = read_history(tmp_path / "history.bin")
    assert late is not None
    state = RunState()
    apply_history(state, late)
    samples = state.frame(Standing(LIVE)).samples
    assert samples is not None and samples.governor == RECORDS[0]
    assert samples.parameter("a.weight") == (4, ParameterSample("a.weight", 5.0))
    assert samples.histogram("weight", "a.weight") == RECORDS[-1]
    assert state.unknown_records == 0
