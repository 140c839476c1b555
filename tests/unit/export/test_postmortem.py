"""A post-mortem says what the recording holds, reaches nowhere, and shows hostile text as text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.export.recorded import BAD_STEP, HOSTILE, STEPS, a_night, write
from tuimon.cli import status_of
from tuimon.errors import EXIT_NO_RUN, EXIT_REFUSED, EXIT_USAGE
from tuimon.export import drawing
from tuimon.export.postmortem import open_run
from tuimon.export.story import verdict
from tuimon.model import commands
from tuimon.model.records import CommandState

_VOID = {"meta", "img", "br", "hr", "link", "input"}
_MOST = 100


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails where they are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text.append(data)


def report(run: Path, output: Path, *more: str) -> str:
    assert status_of(["report", str(run), *more, "-o", str(output)]) == 0
    return output.read_text("utf-8")


def test_the_page_tells_what_happened_and_reaches_nowhere(tmp_path: Path) -> None:
    run = write(tmp_path / "run", a_night())
    text = report(run, tmp_path / "x.html")
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "object", "link", "a", "form"}
    hrefs = [value for _, attrs in page.tags for key, value in attrs.items() if key == "href"]
    assert hrefs and all(value and value.startswith("data:image/png;base64,") for value in hrefs)
    assert not any(key.startswith("on") or key == "src" for _, attrs in page.tags for key in attrs)
    shown = "".join(page.text)
    assert "diverged" in shown and "non-finite-loss" in shown and f"! from {BAD_STEP}" in shown
    assert "onerror" in shown, "a hostile name is shown, as text"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)


def test_interventions_are_called_what_the_screens_call_them(tmp_path: Path) -> None:
    asked = [
        commands.Dump(["head.weight", "enc.0"], "/x"), commands.SetBreakpoint("loss > 3"),
        commands.SetClip("on", 0.5), commands.RunAutopsy(),
    ]  # fmt: skip
    told = [
        CommandState(str(step), each.title, "applied", step=step, words=each.words)
        for step, each in enumerate(asked)
    ]
    old = CommandState("9", "SetMaxNorm", "applied", step=9, old="1", new="0.5")
    run = write(tmp_path / "run", [*told, old, *a_night()])
    text = report(run, tmp_path / "x.md").partition("Interventions")[2]
    for words in ("dump head.weight, enc.0", "breakpoint loss", "clip on 0.5", "run autopsy"):
        assert words in text
    assert "max\\_norm" in text or "max_norm" in text
    assert not re.search("Dump|SetBreakpoint|SetClip|RunAutopsy|SetMaxNorm", text)


def test_what_is_not_finite_is_drawn_where_it_was(tmp_path: Path) -> None:
    page = Page(report(write(tmp_path / "run", a_night()), tmp_path / "x.html"))
    bands = [attrs for tag, attrs in page.tags if tag == "rect" and attrs.get("class") == "nan"]
    assert len(bands) == 2, "loss and grad_norm"
    left, right = drawing.LEFT, drawing.WIDTH - drawing.RIGHT  # the edges of the plot
    for band in bands:
        began = (float(band["x"] or 0) - left) / (right - left)
        assert began == pytest.approx(BAD_STEP / STEPS, abs=1 / STEPS)
    lines = [attrs for tag, attrs in page.tags if tag == "polyline" and "line" in attrs["class"]]
    ends = max(float(each["points"].split()[-1].split(",")[0]) for each in lines[:2])
    assert (ends - left) / (right - left) < BAD_STEP / STEPS, "no line is drawn through a NaN"


def test_a_healthy_run_has_no_alarm_in_it(tmp_path: Path) -> None:
    page = Page(report(write(tmp_path / "run", a_night(bad_step=None)), tmp_path / "x.html"))
    assert [attrs for tag, attrs in page.tags if attrs.get("class") in ("nan", "inf")] == []
    assert "healthy" in "".join(page.text)


def test_a_verdict_without_a_cause_says_whether_there_was_any_to_find() -> None:
    run = {"steps": 3, "exit": {"kind": "ok", "code": 0}}
    seen = {"run": run, "symptoms": [{"kind": "drift"}], "findings": []}
    healthy = " ".join(verdict({**seen, "outcome": "healthy"}).text)
    assert "nothing to explain" in healthy and "No cause" not in healthy
    assert "No cause is named" in " ".join(verdict({**seen, "outcome": "stalled"}).text)


def test_markdown_holds_no_markup_of_the_data(tmp_path: Path) -> None:
    text = report(write(tmp_path / "run", a_night()), tmp_path / "x.md")
    assert text.startswith("# night\n") and "## Verdict: diverged" in text
    assert "<img" not in text.replace("\\<", "") and "\x1b" not in text


def test_json_is_the_report_of_the_run(tmp_path: Path) -> None:
    run = write(tmp_path / "run", a_night())
    rebuilt = json.loads(report(run, tmp_path / "x.json"))
    assert rebuilt["schema"] == "tuimon.report/1" and rebuilt["outcome"] == "diverged"
    assert rebuilt["run"]["steps"] == STEPS
    (run / "report.json").write_text(json.dumps({**rebuilt, "outcome": "stalled"}))
    assert json.loads(report(run, tmp_path / "y.json"))["outcome"] == "stalled"
    assert not open_run(str(run)).rebuilt
    (run / "report.json").write_text('{"schema": "tuimon.rep')
    assert json.loads(report(run, tmp_path / "z.json")) == rebuilt


def test_a_single_file_is_enough(tmp_path: Path) -> None:
    (file,) = write(tmp_path / "run", a_night()).glob("*.tuimon")
    alone = tmp_path / "sent.tuimon"
    shutil.copy(file, alone)
    assert "diverged" in report(alone, tmp_path / "x.md")


def test_bad_words_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(write(tmp_path / "run", a_night(3, None)))
    table = [
        (["report", run, "-o", str(tmp_path / "x.pdf")], EXIT_USAGE),
        (["report", run, run, run, "-o", "x.md"], EXIT_USAGE),
        (["report", str(tmp_path / "none.tuimon"), "-o", str(tmp_path / "x.md")], EXIT_NO_RUN),
        (["report", run, "-o", str(tmp_path / "no" / "x.md")], EXIT_REFUSED),
        (["report", run], EXIT_USAGE),
    ]
    for words, status in table:
        capsys.readouterr()
        assert status_of(words) == status, words
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser is installed")
def test_a_real_browser_shows_it_and_runs_nothing(tmp_path: Path) -> None:
    report(write(tmp_path / "run", a_night()), tmp_path / "x.html")
    done = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"file://{tmp_path / 'x.html'}"),
        ],
        capture_output=True,
        text=True,
        timeout=_MOST,
    )
    page = Page(done.stdout)
    assert "diverged" in "".join(page.text)
    assert sum(tag == "svg" for tag, _ in page.tags) > 5
    assert HOSTILE[:9] not in done.stdout
