"""Whatever a training calls itself, its layers and its errors: the terminal meets plain text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.bare import tuimon_run
from tests.pty.terminal import Terminal
from tests.security.hostile import BAD, LONG, SEQUENCES, records, unsafe_in
from tuimon.feed.codec import decode, encode
from tuimon.feed.registry import RunInfo, load

HOSTILE = Path(__file__).with_name("hostile.py")
ROOT = HOSTILE.parents[2]
# What the viewer itself may write: cursor, colours, character sets, keypad, shape of the pointer.
_OURS = re.compile(
    r"\x1b\[[0-9;:?<>=!$ ]*[@-~]|\x1b[()][0-9A-B]|\x1b[78=>]|\x1b\]22;[a-z-]*\x07"
    r"|\x1b\]0;[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*\x07"  # the title
    r"|\x08+\x1bD"  # down, and back over what was written
)

# Every command that prints, one after the other in one process: what each starts with is its own.
PRINTS = """
import sys
from tuimon.cli import status_of
run, report, bad, long = sys.argv[1:]
for words in (
    ['ls'], ['ls', '--json'], ['attach', '--once', run], ['ctl', run, 'pause'],
    ['ctl', run, 'pause', '--json'], ['ctl', run, 'log'], ['ctl', run, 'log', '--json'],
    ['explain', bad], ['attach', '--once', bad], ['ctl', bad, 'pause'], ['ctl', run, bad],
    ['ctl', run, 'clip', bad], ['run', '--apply', bad, 'x.py'],
    ['run', '--report', bad + '/x', bad], ['demo', bad],
    ['run', '--on-non-finite', bad, 'x'], ['ctl', '--via', bad, run, 'pause'],
    ['attach', '--once', '--via', bad, run], [bad], ['attach', '--once', long],
):
    status = status_of(words)
    print('status', status, '' if words == [bad] else words[0])
from pathlib import Path
from tuimon.train.boundary import say
from tuimon.train.launch.concluded import cause_lines, findings_from
for line in (*cause_lines(Path(report)), *findings_from(Path(report), 'warning')):
    say(line)
say(long)
print('THE END')
"""


@pytest.fixture
def run() -> Iterator[RunInfo]:
    process = subprocess.Popen(
        [sys.executable, str(HOSTILE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=None,
        cwd=ROOT,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield load(Path(process.stdout.readline().strip()))
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


def check(raw: bytes, *, ours: re.Pattern[str] | None = None) -> None:
    """Nothing hostile among the bytes that a terminal was given."""
    text = raw.decode("utf-8")
    for sequence in SEQUENCES:
        assert sequence == "\r\n" or f"{sequence}PWN" not in text, repr(sequence)
    assert unsafe_in(ours.sub("", text) if ours else text) == []


def test_everything_there_is_to_print(run: RunInfo, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"findings": [finding()]}))
    # A NUL cannot be in an argument.
    word = BAD.replace("\0", "")
    terminal = Terminal("-c", PRINTS, run.id, str(report), word, word + "x" * 100_000)
    try:
        terminal.until(lambda text: "THE END" in text)
        assert terminal.end() == 0
    finally:
        terminal.close()
    check(bytes(terminal.raw))
    statuses = re.findall(rb"status (\d+) (\w+)", bytes(terminal.raw))
    assert statuses.count((b"0", b"ls")) == 2 and (b"0", b"attach") in statuses
    assert (b"0", b"ctl") in statuses and not any(status == b"1" for status, _ in statuses)
    assert b"PWN" in terminal.raw


def finding() -> dict[str, Any]:
    return (
        {
            "id": BAD, "cause": BAD, "severity": "critical", "confidence": 1.0, "status": BAD,
            "step": 1, "where": {"module": BAD, "op": BAD, "file": BAD, "line": 3, "param": BAD},
            "evidence": [BAD], "remedy": {"text": LONG, "code": BAD},
        }
    )  # fmt: skip


def test_the_viewer_on_every_screen(run: RunInfo) -> None:
    terminal = Terminal("-m", "tuimon", "attach", run.id, size=(140, 45))
    try:
        terminal.until("PWN")
        for key in "1235v6?":
            terminal.send(key.encode())
            terminal.pump(0.5)
            terminal.send(b"\x1b" if key in "v?" else b"j")
            terminal.pump(0.2)
        terminal.send(b"1p")
        terminal.until(lambda text: "pause" in text.lower())
        terminal.send(b"q")
        assert terminal.end() == 0
    finally:
        terminal.close()
    check(bytes(terminal.raw), ours=_OURS)


def test_the_records_survive_the_wire() -> None:
    for text in (BAD, LONG):
        for record in records(text):
            assert decode(encode(record)) == record


RAISES = """
import torch
from torch import nn
import tuimon
torch.set_num_threads(1)
BAD = {bad!r}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(BAD.replace('.', ''), nn.Linear(2, 1))
    def forward(self, x):
        return next(self.children())(x)
Net.__name__ = Net.__qualname__ = BAD.replace(chr(0), '')
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = tuimon.watch(model, optimizer, name=BAD + 'x' * 1_000_000)
for step in range(6):
    optimizer.zero_grad()
    x = torch.ones(3, 2)
    loss = model(x).log().sum() if step == 3 else model(x).square().sum()
    loss.backward()
    optimizer.step()
    monitor.log(**{{BAD: step, BAD + 'x' * 1_000_000: step, 'bad': BAD}})
raise ValueError(BAD + 'x' * 1_000_000)
"""


def test_what_a_training_says_of_itself_at_its_end(tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text(RAISES.format(bad=BAD))
    name = BAD.replace("\0", "")
    ran = tuimon_run(tmp_path, "--name", name, "--report", "r.json", str(script), scribe=True)
    assert ran.status == 1
    ours = "\n".join(ran.ours)
    check(ours.encode())
    assert len(ran.ours) >= 3 and all(len(line) < 2500 for line in ran.ours), ours
    assert (tmp_path / "r.json").stat().st_size < 1 << 20
    check((tmp_path / "r.json").read_bytes())
