"""What the scribe leaves at the end of a run is told by the training that has waited for it."""

from __future__ import annotations

from pathlib import Path

from tuimon.scribe import ending
from tuimon.train.launch.concluded import trouble_with_report


def test_why_a_report_could_not_be_written_is_told(tmp_path: Path) -> None:
    assert trouble_with_report(tmp_path) == "", "nothing has been said yet"
    ending.tell_done(tmp_path, [])
    assert trouble_with_report(tmp_path) == ""
    ending.tell_done(tmp_path, ["cannot be written to /x/r.json: No space left\x1b[31m"])
    assert "No space left" in trouble_with_report(tmp_path)
    assert "\x1b" not in trouble_with_report(tmp_path)
