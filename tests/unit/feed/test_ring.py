"""The ring: order, wrap-around, overrun, damage, and that the writer never fails the caller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuimon.errors import IncompatibleVersion, NoRoom, NoSuchRun
from tuimon.feed.ring import ALIGN, HEADER_BYTES, RingReader, RingWriter
from tuimon.model.records import PAUSED, RUNNING

CAPACITY = 4096


@pytest.fixture
def writer(tmp_path: Path) -> RingWriter:
    return RingWriter.create(tmp_path / "1.ring", CAPACITY, start_ticks=77)


def payload(index: int, size: int = 40) -> bytes:
    return f"{index:06d}".encode().ljust(size, b".")


def drain(reader: RingReader) -> list[bytes]:
    found: list[bytes] = []
    while batch := reader.read(max_s=10):
        found += batch
    return found


def test_records_come_back_in_order(writer: RingWriter) -> None:
    reader = RingReader(writer.path)
    sent = [payload(index) for index in range(10)]
    assert all(writer.publish(each) for each in sent)
    assert drain(reader) == sent
    assert reader.last_sequence == 10
    assert reader.lost == {}


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=200),
    every=st.integers(1, 6),
)
def test_a_reader_that_keeps_up_sees_every_byte(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], every: int
) -> None:
    writer = RingWriter.create(tmp_path_factory.mktemp("ring") / "1.ring", CAPACITY * 2)
    reader = RingReader(writer.path)
    sent, seen = [], []
    for index, size in enumerate(sizes):
        sent.append(payload(index, size))
        assert writer.publish(sent[-1])
        if index % every == 0:
            seen += drain(reader)
    seen += drain(reader)
    assert seen == sent
    assert reader.lost == {}
    writer.close()


@settings(max_examples=60, deadline=None)
@given(
    bursts=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    size=st.integers(0, 300),
)
def test_what_a_slow_reader_misses_is_counted(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[int], size: int
) -> None:
    writer = RingWriter.create(tmp_path_factory.mktemp("ring") / "1.ring", CAPACITY)
    reader = RingReader(writer.path)
    sent, seen = 0, []
    for burst in bursts:
        for _ in range(burst):
            writer.publish(payload(sent, size))
            sent += 1
        seen += drain(reader)
    indices = [int(each[:6]) for each in seen]
    assert indices == sorted(set(indices))
    assert len(seen) + reader.lost.get("overrun", 0) == sent
    assert set(reader.lost) <= {"overrun"}
    if sent:
        assert indices[-1] == sent - 1
    writer.close()


def test_a_late_reader_starts_behind_the_record_it_knows(writer: RingWriter) -> None:
    for index in range(20):
        writer.publish(payload(index))
    assert drain(RingReader(writer.path, from_sequence=15)) == [payload(i) for i in range(15, 20)]


def test_a_late_reader_counts_what_was_overwritten_before_it_came(writer: RingWriter) -> None:
    for index in range(500):
        writer.publish(payload(index))
    reader = RingReader(writer.path, from_sequence=3)
    seen = drain(reader)
    assert seen[-1] == payload(499)
    assert reader.lost["overrun"] == 500 - 3 - len(seen)


def test_a_reader_at_the_end_sees_only_what_follows(writer: RingWriter) -> None:
    writer.publish(payload(0))
    reader = RingReader(writer.path, at_end=True)
    assert drain(reader) == []
    writer.publish(payload(1))
    assert drain(reader) == [payload(1)]


@pytest.mark.parametrize("offset", [0, 5, 9, 17, 21, 30, 63])
def test_a_flipped_bit_costs_one_record_and_is_counted(writer: RingWriter, offset: int) -> None:
    for index in range(5):
        writer.publish(payload(index))
    with open(writer.path, "r+b") as file:
        file.seek(HEADER_BYTES + 2 * ALIGN + offset)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))
    reader = RingReader(writer.path)
    seen: list[bytes] = []
    for _ in range(RingReader.TORN_AFTER + 1):
        seen += reader.read()
    assert seen == [payload(0), payload(1), payload(3), payload(4)]
    assert reader.lost == {"torn": 1}


def test_a_record_cut_off_by_a_kill_is_not_yet_there(writer: RingWriter) -> None:
    writer.publish(payload(0))
    reader = RingReader(writer.path)
    assert drain(reader) == [payload(0)]
    with open(writer.path, "r+b") as file:  # header of a record whose payload never came
        file.seek(HEADER_BYTES + ALIGN)
        file.write(b"TUIR" + (40).to_bytes(4, "little") + (2).to_bytes(8, "little"))
    for _ in range(10):
        assert reader.read() == []
    assert reader.lost == {}


def test_too_large_records_are_refused_and_counted(writer: RingWriter) -> None:
    assert not writer.publish(bytes(CAPACITY))
    assert writer.dropped == 1
    assert RingReader(writer.path).status().dropped == 1


def test_a_closed_writer_says_no(writer: RingWriter) -> None:
    writer.close()
    writer.close()
    assert not writer.publish(b"x")
    writer.set_state(PAUSED, 3)


def test_a_forked_child_writes_nothing(writer: RingWriter) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not writer.publish(b"from the child") else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert drain(RingReader(writer.path)) == []


def test_the_header_tells_state_and_step(writer: RingWriter) -> None:
    reader = RingReader(writer.path)
    first = reader.status()
    assert (first.state, first.step, first.writer_pid, first.start_ticks) == (
        RUNNING,
        None,
        os.getpid(),
        77,
    )
    writer.set_state(PAUSED, 12)
    paused = reader.status()
    assert (paused.state, paused.step) == (PAUSED, 12)
    writer.set_state(PAUSED, 13)
    assert reader.status().changed_ns == paused.changed_ns


def test_a_record_takes_the_newest_step_to_the_header(writer: RingWriter) -> None:
    reader = RingReader(writer.path)
    writer.set_state(PAUSED, 12)
    writer.step = 13
    writer.publish(b"x")
    assert (reader.status().state, reader.status().step) == (PAUSED, 13)
    writer.step = 14
    assert not writer.publish(bytes(CAPACITY))
    assert reader.status().step == 14


def test_reads_are_bounded_by_count(writer: RingWriter) -> None:
    for index in range(10):
        writer.publish(payload(index))
    assert len(RingReader(writer.path).read(max_records=4)) == 4


def test_a_full_disk_is_reported_before_anything_is_mapped(tmp_path: Path) -> None:
    with pytest.raises(NoRoom):
        RingWriter.create(tmp_path / "1.ring", 1 << 50)
    assert list(tmp_path.glob("*.ring")) == []


def test_strange_files_are_refused(tmp_path: Path, writer: RingWriter) -> None:
    with pytest.raises(NoSuchRun):
        RingReader(tmp_path / "none.ring")
    (tmp_path / "text.ring").write_bytes(b"hello")
    with pytest.raises(IncompatibleVersion):
        RingReader(tmp_path / "text.ring")
    with open(writer.path, "r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "little"))
    with pytest.raises(IncompatibleVersion, match="format 99"):
        RingReader(writer.path)
