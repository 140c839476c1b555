"""One rank of a training of several, as the tests of agreed commands start it.

Arguments: rank, world size, port of the store, folder for what it writes, kind, time-out of its
process group in seconds while there is a file `impatient`. The rank is `told` where torchrun says
it in the environment; `all` where this process is to spawn them. Below a launcher nothing is
watched but by `tuimon run`.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import tuimon
from tuimon.train.session import current_session

MAX_STEPS = 100_000
LR, MOMENTUM, MAX_NORM = 0.01, 0.9, 1.0
SLOW_S = 0.03  # of the forward of a rank that holds up the others
LONG_S = 600.0  # of a process group that is not impatient
STEP_S = 0.002  # of every update, so that a training does not run away from its tests


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def draw(draws: torch.Generator) -> torch.Tensor:
    """One batch of a rank."""
    return torch.randn(4, 3, generator=draws)


def replicated(kind: str) -> nn.Module:
    """The same model on all ranks: `ddp`, or `accumulated` with two batches an update.

    With normalisation over all ranks it is `sync`.
    """
    model = small()
    if kind == "sync":
        model.append(nn.SyncBatchNorm(1))  # never called on a CPU, which has none of it
        model[3].forward = lambda x: x
    replica = nn.parallel.DistributedDataParallel(model)
    if dist.get_world_size() > 2:
        replica.register_comm_hook(None, in_order)
    return replica


def mean(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of all ranks, added by rank, so that it is the same bits wherever it is computed."""
    total = parts[0] / len(parts)
    for part in parts[1:]:
        total = total + part / len(parts)
    return total


def in_order(_, bucket):  # type: ignore[no-untyped-def]  # torch takes no annotation as a text
    """The mean of all ranks' gradients; a ring would add each element in an order of its own."""
    mine = bucket.buffer()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    gathered = dist.all_gather(parts, mine, async_op=True)

    def joined(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        done.value()  # raises what has failed; each rank would go on by itself, with any bits
        return mean(parts)

    return gathered.get_future().then(joined)


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = small()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model


def loop(model: nn.Module, out: Path, rank: int, momentum: float) -> None:
    """Train until a stop, or until the step that is written in the file `end`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    if sys.argv[1].isdecimal():
        tuimon.watch(model, optimizer, snapshot_every=5)
    session = current_session()
    assert session is not None and session.info is not None
    tell(out / f"ready-{rank}", session.info.folder)
    draws = torch.Generator().manual_seed(rank)
    first = next(each for each in model.modules() if isinstance(each, nn.Linear))
    first.register_forward_pre_hook(lambda *_: wait_if(out / f"slow-{rank}"))
    for step in range(MAX_STEPS):
        optimizer.zero_grad()
        if sys.argv[5] == "accumulated":
            with model.no_sync():
                model(draw(draws)).pow(2).mean().backward()
        x = draw(draws)
        if (out / f"poison-{rank}").exists():
            x[0, 0] = float("nan")
        model(x).pow(2).mean().backward()
        if not (out / "unclipped").exists():
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        set_limit(float(sys.argv[6]) if (out / "impatient").exists() else LONG_S)
        time.sleep(STEP_S)
        if (out / "end").exists() and int((out / "end").read_text()) == step:
            break


def set_limit(seconds: float) -> None:
    """How long this rank waits for the others in a collective from now on."""
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds))


def wait_if(file: Path) -> None:
    """In the midst of a forward, hold up the other ranks."""
    if file.exists():
        time.sleep(SLOW_S)


def tell(file: Path, text: str) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(text)
    os.replace(draft, file)


def values(model: nn.Module) -> list[Any]:
    params = [getattr(param, "_local_tensor", param) for param in model.parameters()]
    return [param.detach().tolist() for param in params]


def main(measure: Callable[[], Any] = str) -> None:
    """One rank, or all of them: as the arguments say."""
    place, size = sys.argv[1], int(sys.argv[2])
    if place == "all":
        torch.multiprocessing.spawn(train, args=(measure,), nprocs=size)
    else:
        train(int(os.environ["RANK"] if place == "told" else place), measure)


def train(rank: int, measure: Callable[[], Any]) -> None:
    """Train, then say how it ended, and what `measure` finds while all ranks are still there."""
    size, port, folder, kind = sys.argv[2:6]
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=int(size))
    model = sharded() if kind == "fsdp" else replicated(kind)
    stopped, out = "", Path(folder)
    try:
        loop(model, out, rank, 0.0 if kind == "fsdp" else MOMENTUM)
    except tuimon.Stop as stop:
        stopped = str(stop)
    measured = measure()
    if not stopped:
        dist.barrier()
    found = {"stopped": stopped, "params": values(model), "measured": measured}
    tell(out / f"end-{rank}", json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
