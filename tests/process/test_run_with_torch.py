"""`tuimon run` on trainings: identical from outside, every step published, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.bare import both, tuimon_run
from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.ring import RingReader
from tuimon.model.records import AnyRecord, Goodbye, LayerTable, Step

TRAINS = """
import os, sys, threading
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    def forward(self, x):
        return self.layers(
            torch.as_tensor(x))

def bad(model):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float('nan'))
    return list(model.parameters())

def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for workers in ('fork', 'spawn'):
        for x, y in DataLoader(data, 10, num_workers=1, multiprocessing_context=workers):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            print(loss.item().hex())
    thread = threading.Thread(target=model, args=('text',), name='a')
    thread.start()
    thread.join()
    chain = None
    for fails in (
        lambda: model('text'),
        lambda: torch.optim.SGD([], lr=1),
        lambda: loss.backward(),
        lambda: nn.utils.clip_grad_norm_(bad(model), 1.0, error_if_nonfinite=True),
        lambda: optimizer.step(lambda: 1 / 0),
    ):
        try:
            fails()
        except Exception as error:
            error.__cause__, chain = chain, error
    raise RuntimeError('wrapped') from chain

if __name__ == '__main__':
    main()
"""


def records_of_newest_run() -> list[AnyRecord]:
    newest = registry.list_runs()[-1]
    reader = RingReader(newest.ring())
    return [decode(payload) for payload in reader.read(100_000, max_s=30)]


@pytest.mark.hazard(30, 31)
def test_a_training_is_the_same_and_published(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    bare, watched = both(tmp_path, "-m", "train")
    assert bare.status == 1 and "Exception in thread a" in bare.stderr
    assert len(watched.ours) == 2 and "this is run" in watched.ours[0]
    records = records_of_newest_run()
    steps = [record for record in records if isinstance(record, Step)]
    assert [record.step for record in steps] == list(range(8))
    losses = [float.fromhex(line) for line in bare.stdout.splitlines()]
    assert [record.loss for record in steps] == losses
    tables = [record for record in records if isinstance(record, LayerTable)]
    assert "layers.0.weight" in tables[-1].names
    goodbye = records[-1]
    assert isinstance(goodbye, Goodbye)
    assert (goodbye.kind, goodbye.code) == ("exception", 1)
    assert goodbye.detail == "RuntimeError: wrapped"


def test_no_optimizer_is_worth_a_warning(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    _, watched = both(tmp_path, "script.py")
    assert len(watched.ours) == 2
    assert "optimizer" in watched.ours[-1]


ENDLESS = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A training that goes on until somebody ends it; its first step has been made."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, "-m", "tuimon", "run", "endless.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TUIMON_SCRIBE": "0"},
    )
    assert process.stderr is not None
    assert "tuimon attach" in process.stderr.readline()
    yield process
    process.kill()
    process.communicate()


def tuimon(*argv: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tuimon", *argv], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_reaching_in_from_a_script(endless: subprocess.Popen[str], tmp_path: Path) -> None:
    run = str(endless.pid)
    status, out, _ = tuimon("ctl", run, "pause", "--json")
    paused = json.loads(out)
    assert (status, paused["command"], paused["state"]) == (0, "Pause", "applied")
    assert set(paused) == {"command", "id", "state", "step", "old", "new", "reason"}
    listed = json.loads(tuimon("ls", "--json")[1])
    assert [(row["pid"], row["state"]) for row in listed] == [(endless.pid, "paused")]
    assert set(listed[0]) == {
        "id", "name", "host", "pid", "ranks", "state", "step", "started_at", "exit",
        "ranks_here", "lost_spawner", "waits_s", "cost",
    }  # fmt: skip
    assert tuimon("ctl", run, "step", "2")[0] == 0
    status, out, _ = tuimon("ctl", run, "clip", "on", "--max-norm", "1.5", "--timeout", "0.2")
    assert status in (0, 4)
    status, _, err = tuimon("ctl", run, "clip", "on", "--max-norm", "-1")
    assert (status, len(err.splitlines())) == (2, 1)
    assert tuimon("ctl", run, "resume")[0] == 0
    status, _, err = tuimon("ctl", run, "step")
    assert (status, "not paused" in err) == (4, True)
    dumped = tmp_path / "dumped"
    assert tuimon("ctl", run, "dump", "weight", "-o", str(dumped))[0] == 0
    assert any(dumped.rglob("*.safetensors"))
    status, out, _ = tuimon("ctl", run, "stop")
    assert (status, "applied" in out) == (0, True)
    _, err = endless.communicate(timeout=60)
    assert endless.returncode == 130
    assert all(line.startswith("tuimon:") for line in err.splitlines()), err
    assert "stopped by " in err and f"@{os.uname().nodename}" in err, "who asked is not said"
    log = json.loads(tuimon("ctl", run, "log", "--json")[1])
    assert log[0]["command"] == "Pause"
    assert log[-1]["command"] == "Stop"
    assert all(entry["by"] for entry in log)
    assert tuimon("ctl", run, "pause")[0] == 3


@pytest.mark.hazard(32)
def test_a_stopped_process_and_an_interrupted_one(endless: subprocess.Popen[str]) -> None:
    assert tuimon("ctl", str(endless.pid), "pause")[0] == 0
    endless.send_signal(signal.SIGSTOP)
    status, out, _ = tuimon("ctl", str(endless.pid), "resume", "--json")
    assert (status, json.loads(out)["state"]) == (4, "expired")
    endless.send_signal(signal.SIGINT)
    endless.send_signal(signal.SIGCONT)
    _, err = endless.communicate(timeout=60)
    assert endless.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    listed = json.loads(tuimon("ls", "--json")[1])
    assert (listed[0]["state"], listed[0]["exit"]["kind"]) == ("gone", "stopped")


def test_a_report_is_there_when_the_run_is_over(tmp_path: Path) -> None:
    source = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(6):
    optimizer.zero_grad()
    x = torch.full((1, 2), float('nan') if step == 3 else 1.0)
    model(x).sum().backward()
    optimizer.step()
"""
    (tmp_path / "script.py").write_text(source)
    (tmp_path / "a").mkdir()
    watched = tuimon_run(tmp_path, "--report", "a/../report.json", "script.py", scribe=True)
    assert watched.status == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] == "tuimon.report/1"
    assert report["run"]["exit"] == {"kind": "ok", "code": 0, "detail": ""}
    found = {(symptom["kind"], symptom["step"]) for symptom in report["symptoms"]}
    assert ("non-finite-loss", 3) in found
    assert len(watched.ours) == 5
    assert "step 3: the batch" in watched.ours[1]
    assert "data-nonfinite" in watched.ours[2] and watched.ours[3].startswith("tuimon: remedy")
    assert str(tmp_path / "report.json") in watched.ours[-1], "a path as one would write it"
