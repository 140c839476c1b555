"""Scripts that crash: the same from outside as under python, and their scene in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.process.bare import both, python, tuimon_run
from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.crash import Crash
from tuimon.model.records import Goodbye

pytestmark = pytest.mark.usefixtures("light")

LOOP = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
WATCH
def main():
    for step in range(5):
        x, labels = torch.randn(6, 4), torch.randint(0, 3, (6,))
        BREAK
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
main()
"""
LABEL = "labels[2] = 3 if step == 3 else labels[2]"
ONE_ROW = "x, labels = (x[:1], labels[:1]) if step == 2 else (x, labels)"
LINE = LOOP.splitlines().index("        loss = nn.functional.cross_entropy(model(x), labels)") + 1
WATCH = "import tuimon; tuimon.watch(model, optimizer)"


def script(folder: Path, breaks: str, watch: str = "") -> None:
    (folder / "train.py").write_text(LOOP.replace("BREAK", breaks).replace("WATCH", watch))


def records() -> list[Any]:
    newest = registry.list_runs()[-1]
    return [decode(each) for each in RingReader(newest.ring()).read(10_000, max_s=10)]


def crash() -> Crash | None:
    return next((record for record in records() if isinstance(record, Crash)), None)


def test_a_crash_stands_in_the_report(tmp_path: Path) -> None:
    script(tmp_path, LABEL)
    report = tmp_path / "report.json"
    bare = python(tmp_path, "train.py")
    watched = tuimon_run(tmp_path, "--report", str(report), "train.py", scribe=True)
    assert (watched.stdout, watched.theirs, watched.status) == (bare.stdout, bare.stderr, 1)
    assert "the run ended after step 2 by IndexError" in watched.stderr
    document = json.loads(report.read_text())
    assert document["outcome"] == "crashed"
    (symptom,) = [each for each in document["symptoms"] if each["kind"] == "exception"]
    assert symptom["step"] == 3
    assert "labels (target) int64 [6] 0 … 3" in symptom["detail"]
    entry = document["autopsies"][-1]
    assert (entry["step"], entry["engine"]) == (3, "")
    first = entry["first"]
    assert (first["op"], first["phase"], first["module"]) == (
        "aten::cross_entropy_loss",
        "forward",
        "",
    )
    assert (first["file"], first["line"]) == ("train.py", LINE)
    losses = [float(line.split()[1]) for line in bare.stdout.splitlines()]
    assert [each["loss"] for each in entry["last_steps"]] == losses
    assert all(each["grad_norm"] > 0 for each in entry["last_steps"])


def test_a_module_that_refuses_its_batch_is_named(tmp_path: Path) -> None:
    script(tmp_path, ONE_ROW)
    assert tuimon_run(tmp_path, "train.py").status == 1
    found = crash()
    assert found is not None and found.place is not None
    assert (found.step, found.kind, found.module) == (2, "ValueError", "1")
    assert found.place.line == LINE
    kinds = [type(record) for record in records()]
    assert kinds.index(Crash) < kinds.index(Goodbye)


def test_a_script_that_watches_itself_leaves_its_scene_too(tmp_path: Path) -> None:
    script(tmp_path, LABEL, WATCH)
    watched = python(tmp_path, "train.py")
    assert watched.status == 1
    found = crash()
    assert found is not None and (found.step, found.kind) == (3, "IndexError")
    assert any(each.name == "labels (target)" and each.high == 3 for each in found.inputs)


def test_an_interruption_is_no_crash(tmp_path: Path) -> None:
    script(tmp_path, "if step == 1: raise KeyboardInterrupt")
    assert tuimon_run(tmp_path, "train.py").status != 0
    assert crash() is None


def test_an_exit_after_an_exception_tells_of_the_exception(tmp_path: Path) -> None:
    breaks = "\n        ".join(
        (
            "try:",
            "    model(torch.randn(2, 5))",
            "except RuntimeError:",
            "    sys.exit('that was it')",
        )
    )
    script(tmp_path, breaks)
    assert tuimon_run(tmp_path, "train.py").status == 1
    found = crash()
    assert found is not None
    assert (found.kind, found.message, found.module) == ("SystemExit", "that was it", "0")
    assert found.cause.startswith("RuntimeError: mat1 and mat2")


def test_a_failing_look_leaves_the_script_alone(tmp_path: Path) -> None:
    # A module whose own bookkeeping is broken by the time of the crash.
    breaks = "model._modules = 1 / 0 if step == 1 else model._modules"
    script(tmp_path, f"model.named_modules = None; {breaks}")
    bare, watched = both(tmp_path, "train.py")
    assert "ZeroDivisionError" in bare.stderr and watched.status == 1
