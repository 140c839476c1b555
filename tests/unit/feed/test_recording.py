"""A recording is read as far as it is whole: cut anywhere, zeroed, or with flipped bits."""

from __future__ import annotations

import itertools
import resource
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuimon.errors import IncompatibleVersion, NoSuchRun
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import encode
from tuimon.feed.frames import FILE_MAGIC, SCRIBE, kind_of
from tuimon.feed.recorder import Recorder
from tuimon.feed.recording import read_recording
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.feed.segments import Segment, opening
from tuimon.model.records import (
    AnyRecord,
    Event,
    Facts,
    Goodbye,
    Hello,
    LayerTable,
    Loss,
    Step,
    System,
)

PID = 77
INFO = RunInfo("abcd1234", "night", "here", 0, "/x", ranks=[RankInfo(0, PID, 5, "77.ring")])
HELLO = Hello(1, INFO.id, INFO.name, INFO.host, PID)


def some_records(count: int = 12) -> list[AnyRecord]:
    steps = [
        Step(i, i * 10**6, loss=1.0 / (i + 1), norms=bytes([i]) * 8, flags=b"\0\1")
        for i in range(count)
    ]
    return [
        HELLO,
        LayerTable(0, ["a", "b"]),
        *steps,
        Loss(count, float("inf")),
        System(1.0, device_note="none"),
        Event(count, 1.0, "critical", "killed", "it ended"),
        Goodbye("ok", 0),
    ]


def write(folder: Path, records: list[AnyRecord], **options: int) -> Recorder:
    recorder = Recorder(folder, INFO, PID, keep_free_bytes=0, **options)
    for sequence, record in enumerate(records, 1):
        recorder.append(encode(record), sequence)
        if recorder.is_full:
            recorder.begin()
    recorder.close()
    return recorder


def only_file(folder: Path) -> Path:
    (found,) = folder.glob("*.tuimon")
    return found


def is_part_of(part: list[object], whole: list[object]) -> bool:
    rest = iter(whole)
    return all(any(repr(each) == repr(other) for other in rest) for each in part)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    records = some_records()
    recorder = write(tmp_path / "run", records)
    found = read_recording(tmp_path / "run")
    assert recorder.problem == ""
    assert repr(list(found.records())) == repr(list(enumerate(records, 1)))
    assert found.lost == {}
    assert found.info == INFO
    assert found.pid == PID
    assert found.left_out == 0


def test_it_belongs_to_its_user_alone(tmp_path: Path) -> None:
    write(tmp_path / "run", some_records())
    modes = {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "run").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_what_is_published_again_is_recorded_once(tmp_path: Path) -> None:
    table, facts = LayerTable(0, ["a"]), Facts(["Adam"])
    write(tmp_path / "run", [HELLO, table, table, facts, table, facts, LayerTable(1, ["a"]), table])
    kinds = [type(record) for _, record in read_recording(tmp_path / "run").records()]
    assert kinds == [Hello, LayerTable, Facts, LayerTable, LayerTable]


def test_the_kind_of_every_record_is_its_tag() -> None:
    for record in [*some_records(), Facts()]:
        assert kind_of(encode(record)) == type(record).__struct_config__.tag
    assert kind_of(b"") == kind_of(b"\x01") == kind_of(b"\xdc\x00") == 0


def test_segments_follow_each_other_and_start_with_the_run_so_far(tmp_path: Path) -> None:
    chronicle = Chronicle(INFO.id)
    recorder = Recorder(tmp_path / "run", INFO, PID, max_bytes=1 << 20, keep_free_bytes=0)
    for step in range(900):
        record = Step(step, step, loss=1.0, norms=bytes(400))
        chronicle.add(record)
        recorder.append(encode(record), step + 1)
        if recorder.is_full:
            seen = chronicle.snapshot(up_to_sequence=step + 1, scribe_sequence=0, written_at_s=0.0)
            recorder.begin(seen, step)
    recorder.close()
    found = read_recording(tmp_path / "run")
    assert len(found.segments) > 2
    assert [sequence for sequence, _ in found.records()] == list(range(1, 901))
    middle = found.segments[2]
    assert middle.head is not None and middle.head.step is not None
    before = middle.checkpoint()
    assert before is not None and before.totals.last_step == middle.head.step
    first = next(record for _, record in found.records(2))
    assert isinstance(first, Step) and first.step == middle.head.step + 1


def test_a_scribe_that_comes_again_goes_on_behind(tmp_path: Path) -> None:
    records = some_records()
    write(tmp_path / "run", records[:9])
    second = Recorder(tmp_path / "run", INFO, PID, keep_free_bytes=0)
    for sequence, record in enumerate(records[9:], 10):
        second.append(encode(record), sequence, SCRIBE)
    second.close()
    found = read_recording(tmp_path / "run")
    assert repr([record for _, record in found.records()]) == repr(records)


def test_a_recording_cut_at_any_byte_is_read_up_to_there(tmp_path: Path) -> None:
    records = some_records(5)
    write(tmp_path / "run", records)
    file = only_file(tmp_path / "run")
    whole = file.read_bytes()
    everything = list(enumerate(records, 1))
    head_ends = len(opening(Segment(file).head or pytest.fail("no head"), b""))
    seen = set()
    for size in range(len(whole)):
        cut = tmp_path / "cut.tuimon"
        cut.write_bytes(whole[:size])
        if size < head_ends:
            with pytest.raises(NoSuchRun, match=f"{size:,} bytes, and nothing whole"):
                read_recording(cut)
            continue
        found = read_recording(cut)
        part = list(found.records())
        assert repr(part) == repr(everything[: len(part)])
        seen.add(len(part))
        if found.lost == {}:  # only where the cut leaves whole frames
            assert len(part) == 0 or len(cut.read_bytes()) == size
    assert seen == set(range(len(records)))


@given(flips=st.dictionaries(st.integers(1, 800), st.integers(0, 7), min_size=1, max_size=4))
@settings(max_examples=120, deadline=None)
def test_flipped_bits_cost_the_records_they_hit(
    flips: dict[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    records = some_records(6)
    folder = tmp_path_factory.mktemp("flipped")
    write(folder, records)
    file = only_file(folder)
    whole = bytearray(file.read_bytes())
    for from_end, bit in flips.items():  # its beginning has cases of its own
        whole[-from_end] ^= 1 << bit
    file.write_bytes(whole)
    found = read_recording(file)
    part = list(found.records())
    assert is_part_of(part, list(enumerate(records, 1)))
    assert len(records) - len(flips) <= len(part) < len(records)
    assert found.lost != {}


@pytest.mark.parametrize("start", [0, 64, 300])
def test_zeroed_pages_cost_what_lay_there(tmp_path: Path, start: int) -> None:
    records = some_records(60)
    write(tmp_path / "run", records)
    file = only_file(tmp_path / "run")
    whole = bytearray(file.read_bytes())
    whole[start : start + 1024] = bytes(1024)
    file.write_bytes(whole)
    found = read_recording(file)
    part = list(found.records())
    assert is_part_of(part, list(enumerate(records, 1)))
    assert 0 < len(part) < len(records)
    assert part[-1][1] == records[-1]
    assert found.lost == {"damaged": found.lost["damaged"]}


def test_a_zeroed_end_is_torn(tmp_path: Path) -> None:
    records = some_records()
    write(tmp_path / "run", records)
    file = only_file(tmp_path / "run")
    with open(file, "ab") as more:
        more.write(bytes(4096))
    found = read_recording(file)
    assert len(list(found.records())) == len(records)
    assert found.lost == {"torn": 1}


def test_a_record_of_another_version_is_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", INFO, PID, keep_free_bytes=0)
    for payload in (encode(HELLO), b"\x92\x7d\x01", b"", encode(Goodbye("ok"))):
        recorder.append(payload)
    recorder.close()
    found = read_recording(tmp_path / "run")
    assert [type(record) for _, record in found.records()] == [Hello, Goodbye]
    assert found.lost == {"undecodable": 2}


def test_what_is_no_recording_is_said(tmp_path: Path) -> None:
    other = tmp_path / "other.tuimon"
    other.write_bytes(b"something else entirely")
    with pytest.raises(IncompatibleVersion, match="not a recording"):
        read_recording(other)
    with pytest.raises(NoSuchRun):
        read_recording(tmp_path / "nothing")
    for place, held in enumerate((b"", FILE_MAGIC, b"TUIMONRCab", bytes(4096))):
        void = tmp_path / f"{place}-1.tuimon"
        void.write_bytes(held)
        with pytest.raises(NoSuchRun, match=f"{len(held):,} bytes, and nothing whole"):
            read_recording(void)
    with pytest.raises(NoSuchRun):
        read_recording(tmp_path)


def test_a_write_that_fits_in_part_is_taken_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", INFO, PID, keep_free_bytes=0)
    records = some_records(100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))  # SIGXFSZ is ignored by Python
    try:
        for sequence, record in enumerate(records, 1):
            recorder.append(encode(record), sequence)
            if sequence % 7 == 0:
                recorder.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in recorder.problem
    recorder.close()
    found = read_recording(tmp_path / "run")
    part = list(found.records())
    assert repr(part) == repr(list(enumerate(records, 1))[: len(part)])
    assert 0 < len(part) < len(records)
    assert found.lost == {}


def test_hostile_lengths_do_not_take_memory(tmp_path: Path) -> None:
    recorder = write(tmp_path / "run", some_records())
    file = recorder.path
    whole = bytearray(file.read_bytes())
    for place in itertools.islice(range(len(FILE_MAGIC), len(whole)), 0, None, 97):
        whole[place : place + 4] = b"\xff\xff\xff\x03"
    file.write_bytes(whole)
    found = read_recording(file)
    assert is_part_of(list(found.records()), list(enumerate(some_records(), 1)))
