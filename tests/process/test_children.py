"""Processes that a training starts: data workers, spawned children, the ranks of torchrun."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.process.bare import python, tuimon_run
from tuimon.feed import registry
from tuimon.feed.codec import decode
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model import ledger
from tuimon.model.commands import SetClip
from tuimon.model.records import AnyRecord, CommandState, Goodbye, LayerTable, Loss, Step

# Each test starts several processes that import torch: seconds, on a busy machine minutes.
LIMIT_S = 400
pytestmark = pytest.mark.timeout(LIMIT_S + 20)


def records_of(run: RunInfo, process: RankInfo | None = None) -> list[AnyRecord]:
    reader = RingReader(run.path / (process or run.ranks[0]).ring)
    found = [decode(payload) for payload in reader.read(100_000, max_s=30)]
    reader.close()
    return found


SPAWNS = """
import multiprocessing, os, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

def train(steps, learning_rate=0.1):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        optimizer.step()
    return f'{loss.item().hex()} {torch.get_rng_state().sum()}'

def tell(*words):  # one write a line: children share their output
    os.write(1, (' '.join(map(str, words)) + '\\n').encode())

def rank(index, store):
    dist.init_process_group('gloo', init_method=f'file://{store}', rank=index, world_size=2)
    first = torch.tensor(os.getpid())
    dist.broadcast(first, 0)
    tell('rank', index, train(3 + index))
    dist.destroy_process_group()
    if index == 1:
        leave_last(first.item())

def leave_last(other):
    try:
        while True:  # until the parent has seen the end of the other rank
            os.kill(other, 0)
            time.sleep(0.01)
    except ProcessLookupError:
        pass
    try:
        torch.optim.SGD([], lr=1)
    except ValueError as error:
        raise ValueError('by hand') from error

class Fitted(Dataset):  # an example that takes an optimizer to make
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return train(1)

def alone(inner):
    tell('alone', train(5))
    for batch in DataLoader(Fitted(), num_workers=1, multiprocessing_context='spawn'):
        tell('batch', batch)
    torch.optim.SGD([], lr=1)

if __name__ == '__main__':
    child = multiprocessing.get_context('spawn').Process(target=alone, args=(True,), name='alone')
    child.start()
    child.join()
    tell('exit', child.exitcode)
    torch.multiprocessing.spawn(rank, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.hazard(31)
@pytest.mark.usefixtures("light")
def test_spawned_ranks_are_the_run_of_their_launcher(tmp_path: Path) -> None:
    """Another child that trains is a run by its own name; data workers are nothing."""
    (tmp_path / "spawns.py").write_text(SPAWNS)
    # What is repeated multiplies by 1: the numbers stay those of a bare run.
    asked = SetClip("on", 1e30)
    done = CommandState("a", asked.title, "applied", by="me", step=1, asked=ledger.asked_of(asked))
    head = ledger.head_bytes(run="first", name="n", host="h", argv=["x"], started_at_s=1.7e9)
    (tmp_path / "ledger").write_bytes(head + ledger.line_bytes(done))
    with ThreadPoolExecutor() as pool:
        starts = [
            pool.submit(how, tmp_path, *ours, "spawns.py", str(tmp_path / place), limit_s=LIMIT_S)
            for place, how, ours in (
                ("bare", python, []),
                ("watched", tuimon_run, ["--apply", "ledger"]),
            )
        ]
        bare, watched = (start.result() for start in starts)
    assert bare.status == watched.status == 1
    assert sorted(watched.stdout.splitlines()) == sorted(bare.stdout.splitlines())
    assert "exit 1" in bare.stdout and "ValueError: by hand" in bare.stderr
    assert unnamed(watched.theirs) == unnamed(bare.stderr), "a traceback shows that we were there"
    both, alone = registry.find_run("spawns"), registry.find_run("spawns/alone")
    assert [run.id for run in registry.list_runs()] == [both.id, alone.id]
    assert (both.world_size, [each.rank for each in both.ranks]) == (2, [0, 1])
    assert [ends(both, each) for each in both.ranks] == [(3, "ok", 0), (4, "exception", 1)]
    assert both.launcher is not None and ends(both, both.launcher) == (0, "exception", 1)
    assert registry.find_run(str(both.ranks[1].pid)).id == both.id
    applied = [told for each in both.ranks for told in commands_of(both, each)]
    assert [(told.state, told.step) for told in applied] == [("accepted", 1), ("applied", 1)] * 2
    assert len({told.id for told in applied}) == 1, "to a ledger of this run it is one request"
    assert commands_of(alone, alone.ranks[0]) == []
    said = [line for line in watched.stderr.splitlines() if "--apply" in line]
    assert sorted(line.partition(": ")[2] for line in said) == [
        "--apply: 1 of run first repeated",
        "--apply: no update was made here; repeating was left to 3 spawned",
        "--apply: nothing is repeated in spawns/alone, which is a run of its own",
    ]
    assert (alone.world_size, ends(alone, alone.ranks[0])) == (1, (5, "exception", 1))
    assert alone.launcher is None


def commands_of(run: RunInfo, process: RankInfo) -> list[CommandState]:
    return [each for each in records_of(run, process) if isinstance(each, CommandState)]


def ends(run: RunInfo, process: RankInfo) -> tuple[int, str, int | None]:
    """(number of updates, how it ended, with which status) of one process."""
    found = records_of(run, process)
    last = found[-1]
    assert isinstance(last, Goodbye)
    return sum(isinstance(record, Step) for record in found), last.kind, last.code


def unnamed(text: str) -> str:
    """Without what differs between any two runs: pids and addresses."""
    return re.sub(r"0x[0-9a-f]+|\bpid \d+", "…", text)


RANKS = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

def tell(*words):  # one write a line: the ranks share their output
    os.write(1, (' '.join(map(str, words)) + '\\n').encode())

class Collectives(TorchDispatchMode):
    count = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:  # what it does inside is what counts
            return NotImplemented
        self.count += 'c10d' in func.name()
        return func(*args, **(kwargs or {}))

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group('gloo')
rank = dist.get_rank()
replica = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(replica.parameters(), lr=0.0)
for step in range(4):
    optimizer.zero_grad()
    x = torch.full((1, 2), float('nan') if (rank, step) == (1, 2) else 1.0)
    replica(x).sum().backward()
    optimizer.step()
sharded = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
for layer in (sharded[0], sharded[2], sharded):
    fully_shard(layer)
tell('empty', rank, sum(p.to_local().numel() == 0 for p in sharded.parameters()))
optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
from tuimon.train import monitor
for step in range(4):
    optimizer.zero_grad()
    sharded(torch.ones(2, 4) * (rank + 1)).pow(2).mean().backward()
    with Collectives() as seen:
        if step % 2:
            with monitor._monitors[0].detached():
                nn.utils.clip_grad_norm_(sharded.parameters(), 1e-3)
                optimizer.step()
        else:
            nn.utils.clip_grad_norm_(sharded.parameters(), 1e-3)
            optimizer.step()
    tell('collectives', seen.count)
dist.destroy_process_group()
"""


@pytest.mark.hazard(12, 13, 15)
def test_all_ranks_are_one_run(tmp_path: Path) -> None:
    """Under torchrun: the poisoned rank is the one whose loss is bad; empty shards are no zeros."""
    (tmp_path / "ranks.py").write_text(RANKS)
    words = ["--standalone", "--nproc-per-node=2", "-m", "tuimon", "run", "--report=r.json"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "ranks.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "empty 0 0" in done.stdout and "empty 1 0" not in done.stdout
    counts = {line for line in done.stdout.splitlines() if line.startswith("collectives")}
    assert len(counts) == 1, f"observing has issued a collective: {counts}"
    assert "collectives 0" not in counts, "the script's own is not seen: the test is blind"
    (run,) = registry.list_runs()
    assert run.world_size == 2 and [each.rank for each in run.ranks] == [0, 1]
    for rank, process in enumerate(run.ranks):
        found = records_of(run, process)
        steps = [record for record in found if isinstance(record, Step)]
        assert [step.step for step in steps] == list(range(6))
        # After the all-reduce both have the bad gradient; only one had the bad loss.
        assert math.isnan(steps[2].grad_norm)
        bad = [record.step for record in found if isinstance(record, Loss)]
        assert bad == ([2, 3] if rank == 1 else [3])
        last = steps[-1]
        tables = {record.epoch: record for record in found if isinstance(record, LayerTable)}
        own = [i for i, owner in enumerate(tables[last.epoch].optimizer_index) if owner == 0]
        assert last.grad_norm is not None and math.isfinite(last.grad_norm) and own
        assert isinstance(found[-1], Goodbye) and found[-1].kind == "ok"
    said = [line for line in done.stderr.splitlines() if line.startswith("tuimon:")]
    assert not any("could not" in line for line in said), done.stderr
    assert sum("this is run" in line for line in said) == 1, "one run says what it is once"
    firsts = {line.partition(" at step")[0] for line in said if "first non-finite value" in line}
    assert firsts == {
        "tuimon: rank 1: first non-finite value: loss",
        "tuimon: rank 0: first non-finite value: gradient",
    }
    assert any(line.startswith("tuimon: cause on rank 1: ") for line in said)
    assert all(" rank " in line for line in said if "held NaN" in line or " gave " in line)
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["run"]["ranks"], report["run"]["steps"]) == (2, 6)
    assert [each["first_bad"] for each in report["run"]["by_rank"]] == [False, True]
    assert report["findings"][0]["where"]["rank"] == 1
    bad = {(each["kind"], each["rank"], each["step"]) for each in report["symptoms"]}
    assert ("non-finite-loss", 1, 2) in bad and ("non-finite-loss", 0, 2) not in bad
    assert len(list(run.path.glob("scribe.pid"))) == 1


FLAT = """
import gc, os, sys
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
sys.argv = ['flat.py']
import tuimon

def resident():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGESIZE')

model = nn.Sequential(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
tuimon.watch(model, optimizer)
data = [(torch.randn(16, 8), torch.randn(16, 1)) for _ in range(8)]
def train(steps):
    for step in range(steps):
        x, y = data[step % 8]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
train(1500)
gc.collect()
objects, memory = len(gc.get_objects()), resident()
train(10000)
gc.collect()
print(len(gc.get_objects()) - objects, resident() - memory)
"""


@pytest.mark.hazard(28)
def test_ten_thousand_steps_leave_memory_flat(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FLAT],
        cwd=tmp_path,
        env={**os.environ, "TUIMON_SCRIBE": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    objects, grown_bytes = map(int, done.stdout.split())
    assert abs(objects) < 200
    assert grown_bytes < 20 << 20, "more than the pages of the ring itself, which fill as it turns"
