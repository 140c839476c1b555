"""The ledger of a run: a file that outlives it, what `ctl log` says of it, and `run --apply`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.process.bare import tuimon_run
from tuimon.cli import status_of
from tuimon.errors import EXIT_USAGE
from tuimon.feed import ledger as files
from tuimon.feed import recordings, registry
from tuimon.model import commands, ledger
from tuimon.model.records import CommandState

# Asks for its own interventions, so that each comes ahead of the same update every time.
TRAINS = """
import os, sys, time, uuid
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

def ask(command):
    from tuimon.feed import channel
    from tuimon.train.session import current_session
    request = commands.Request(uuid.uuid4().hex, 'me@\\x1b[1mhere', command, time.time())
    return channel.ask(current_session().info.control, request).state

asked = {}
if 'ask' in sys.argv:
    from tuimon.model import commands
    asked = {
        4: commands.SetClip('on', 0.1), 7: commands.ScaleLr(0.25), 9: commands.SkipUpdate(2),
        11: commands.Dump(['0.weight'], os.path.abspath('dumps')), 12: commands.SetMaxNorm(-1.0),
        13: commands.StepOnce(),
    }
for step in range(16):
    if step in asked:
        ask(asked[step])
    x = torch.randn(8, 6)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x[:, :1] * 3)
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
for parameter in model.parameters():
    print([value.hex() for value in parameter.flatten().tolist()])
"""


def log_of(run: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert status_of(["ctl", run, "log", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == "", "nothing is missing"
    rows: list[dict[str, Any]] = json.loads(said.out)
    return rows


def test_a_second_run_is_the_first_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    first = tuimon_run(
        tmp_path, "--report", "a.json", "--name", "first", str(script), "ask", scribe=True
    )
    assert first.status == 0, first.stderr
    (a,) = registry.list_runs()
    own, mirror = files.places(a)
    assert own.read_bytes() == mirror.read_bytes() and mirror.stat().st_mode & 0o777 == 0o600
    assert b"\x1b" not in own.read_bytes()

    rows = log_of(a.id, capsys)
    fates = [(row["command"], row["state"], row["step"]) for row in rows]
    assert fates == [
        ("SetClip", "applied", 4), ("ScaleLr", "applied", 7), ("SkipUpdate", "applied", 9),
        ("Dump", "applied", 11), ("SetMaxNorm", "refused", None), ("StepOnce", "refused", 13),
    ]  # fmt: skip
    assert rows[0]["arguments"] == {"mode": "on", "max_norm": 0.1}
    report = json.loads((tmp_path / "a.json").read_text())["interventions"]
    assert [(each["command"], each["state"], each["step"]) for each in report] == fates

    second = tuimon_run(tmp_path, "--apply", str(own), str(script), scribe=True)
    assert second.status == 0 and second.stdout == first.stdout
    assert "4 of run" in second.stderr and "repeated" in second.stderr
    b = registry.list_runs()[-1]
    again = [row for row in log_of(b.id, capsys) if row["state"] == "applied"]
    assert [(row["command"], row["step"]) for row in again] == [each[::2] for each in fates[:4]]
    assert all(row["by"].startswith(f"ledger of {a.id}: me@") for row in again)
    assert [path.name for path in (tmp_path / "dumps").iterdir()] != []
    assert (tmp_path / "dumps" / f"run-{b.id}" / "step-000011").is_dir()

    asked = files.read_ledger(a.id)
    for word in (str(own), a.id, a.id[:6], a.name, str(a.main_pid)):
        assert files.read_ledger(word)[1] == asked[1]
    monkeypatch.chdir(tmp_path)
    (tmp_path / a.name).mkdir()  # a folder is not meant
    assert files.read_ledger(a.name)[1] == asked[1]
    shutil.rmtree(a.path)
    assert files.read_ledger(a.name)[1] == asked[1]
    assert [row["id"] for row in log_of(a.id, capsys)] == [row["id"] for row in rows]
    (mirror.parent / f"{a.host}-{a.id}.json").unlink()  # as the sweep does
    assert log_of(a.id, capsys) == rows
    for kept in range(2):
        assert files.read_ledger(a.id)[1].run == files.read_ledger(a.name)[1].run == a.id
        assert log_of(a.name, capsys) == rows
        if not kept:
            shutil.rmtree(recordings.folder_of(a))


def lines() -> list[bytes]:
    """A ledger that is in order, by lines."""
    head = ledger.head_bytes(run="abc", name="n", host="h", argv=["x"], started_at_s=1.7e9)
    asked = [commands.SetClip("on", 0.5), commands.Dump(["0"], "/x"), commands.ScaleLr(0.5)]
    return [head] + [
        ledger.line_bytes(
            CommandState(
                str(step), each.title, "applied", step=step, asked=ledger.asked_of(each)
            )
        )
        for step, each in enumerate(asked)
    ]  # fmt: skip


def test_a_run_that_was_told_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    place = files.mirror_folder() / "h-abc.ledger.jsonl"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(lines()[0] + ledger.end_bytes())
    assert log_of("abc", capsys) == []
    assert status_of(["ctl", "abc", "log"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "tuimon: run abc was sent no command\n")


HOSTILE = {
    "empty": b"",
    "foreign": b"\x7fELF" + bytes(1000),
    "of another version": lines()[0].replace(b"/1", b"/9"),
    "cut": b"".join(lines())[:-9],
    "damaged": b"".join(lines()).replace(b'"step": 1', b'"step": '),
    "nested": lines()[0] + b"[" * 50_000 + b"]" * 50_000 + b"\n",
    "not a command": b"".join(lines()).replace(b"ScaleLr", b"RunCode"),
    "a sign of life": b"".join(lines()).replace(b"ScaleLr", b"Request"),
    "not its arguments": b"".join(lines()).replace(b"factor", b"__class__"),
    "not what a training can do": b"".join(lines()).replace(b"0.5}", b"-1}"),
    "text for a number": b"".join(lines()).replace(b'"factor": 0.5', b'"factor": "\\u001b]0;"'),
    "a relative folder": b"".join(lines()).replace(b'"/x"', b'"../x"'),
    "no step": b"".join(lines()).replace(b'"step": 2', b'"step": null'),
    "a step before the first": b"".join(lines()).replace(b'"step": 2', b'"step": -2'),
    "a step beyond all": b"".join(lines()).replace(b'"step": 2', b'"step": 1' + b"0" * 30),
    "one request in two ways": b"".join(lines()).replace(b'"id": "2"', b'"id": "0"'),
    "an undo of what it does not have": b"".join(lines()[:1])
    + ledger.line_bytes(
        CommandState("9", "Undo", "applied", step=3, asked=ledger.asked_of(commands.Undo()))
    ),
    "endless": lines()[0] + b"x" * (files.MAX_BYTES * 2),
    "many": lines()[0]
    + b"".join(
        lines()[1].replace(b'"id": "0"', b'"id": "%d"' % number)
        for number in range(ledger.MAX_ENTRIES + 1)
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_bad_ledger_ends_in_one_line_before_the_training(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "ledger.jsonl"
    place.write_bytes(HOSTILE[what])
    refused(["run", "--apply", str(place), str(tmp_path / "none.py")], capsys)


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert status_of(words) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("tuimon: ") and said.count("\n") == 1 and len(said) < 500
    assert "\x1b" not in said
    return said


def test_a_ledger_that_is_no_file_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "ledger.jsonl"
    script = str(tmp_path / "none.py")
    assert "no ledger" in refused(["run", "--apply", str(place), script], capsys)
    assert "no ledger" in refused(["run", "--apply", "deadbeef", script], capsys)
    os.mkfifo(place)
    assert "no regular file" in refused(["run", "--apply", str(place), script], capsys)
    place.unlink()
    place.write_bytes(b"".join(lines()))
    place.chmod(0o666)
    assert "anybody may write" in refused(["run", "--apply", str(place), script], capsys)
    place.chmod(0o600)
    assert files.read_ledger(str(place))[1].applied[0].command == commands.SetClip("on", 0.5)
