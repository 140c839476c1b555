"""The output of a training in the background: lines as they come, bars that rewrite themselves."""

from __future__ import annotations

from pathlib import Path

from tuimon.feed.output import BEGIN_BYTES, OutputTail
from tuimon.model.records import Output
from tuimon.view.log import Log


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def _texts(tail: OutputTail) -> list[tuple[str, str]]:
    found = []
    while lines := tail.read():
        found += [(line.stream, line.text) for line in lines]
    return found


def test_lines_appear_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    tail = OutputTail(path, clock=_Clock())
    assert tail.read() == []
    path.write_bytes(b"one\n\x1b[31mtwo\x1b[0m \x1b]0;title\x07\nhal")
    assert _texts(tail) == [("output", "one"), ("output", "two"), ("progress", "hal")]
    with path.open("ab") as file:
        file.write(b"f\n")
    assert _texts(tail) == [("output", "half")]
    assert tail.mark == path.stat().st_size
    tail.close()


def test_a_bar_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    tail, log = OutputTail(path, clock=_Clock()), Log()
    for at in range(5):
        with path.open("ab") as file:
            file.write(b"\r%d%%" % (20 * at))
        for line in tail.read():
            log.add_output(line)
        assert [line.text for line in log.output] == [f"{20 * at}%"]
    with path.open("ab") as file:
        file.write(b"\r100%\ndone\n")
    for line in tail.read():
        log.add_output(line)
    assert [line.text for line in log.output] == ["100%", "done"]


def test_a_late_reader_begins_near_the_end_and_at_a_line(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"".join(b"line %06d\n" % at for at in range(60_000)))
    found = _texts(OutputTail(path, clock=_Clock()))
    assert found[-1] == ("output", "line 059999") and len(found[0][1]) == 11
    assert len(found) * 12 <= BEGIN_BYTES


def test_another_reader_goes_on_where_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"one\ntwo\npart")
    first = OutputTail(path, clock=_Clock())
    assert len(_texts(first)) == 3
    again = OutputTail(path, first.mark, inode=first.inode, clock=_Clock())
    assert _texts(again) == [("progress", "part")]
    other = OutputTail(path, first.mark, inode=first.inode + 1, clock=_Clock())
    assert len(_texts(other)) == 3


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    path = tmp_path / "output.log"
    path.symlink_to(secret)
    assert OutputTail(path, clock=_Clock()).read() == []


def test_a_full_log_keeps_the_newest() -> None:
    log = Log()
    for at in range(6000):
        log.add_output(Output(1.0, "output", str(at)))
    assert log.output[-1].text == "5999" and log.dropped == {"older output": 1000}
