"""What a second run would do outside of the modules is refused, and said; nothing waits."""

from __future__ import annotations

import collections
import itertools
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from tests.train.autopsy.odd_models import WIDTH, Uses
from tests.train.autopsy.test_odd_state import again
from tuimon.train.autopsy import optimizing
from tuimon.train.autopsy.restore import CACHE_GREW, CannotKeep
from tuimon.train.autopsy.sandbox import sandbox
from tuimon.train.boundary import Boundary

STREAM = iter(range(100))
Odd = Callable[[Any, torch.Tensor], Any]


def uses(odd: Odd, **held: Any) -> tuple[nn.Module, torch.Tensor]:
    """A module that does something odd, run once as in the step that is looked at."""
    model = Uses(odd)
    for name, value in held.items():
        setattr(model, name, value)
    x = torch.randn(4, WIDTH)
    model(x).sum().backward()
    return model, x


def test_what_is_taken_out_by_looking_is_not_looked_at() -> None:
    """An iterator, a generator or a loader that a forward reads, wherever it has it from."""
    loader = iter(DataLoader(range(9)))  # type: ignore[arg-type]
    numbers = (number for number in itertools.count())
    held: list[tuple[Odd, dict[str, Any]]] = [
        (lambda m, x: x * next(m.numbers), {"numbers": numbers}),
        (lambda m, x: x * next(STREAM), {}),
        (lambda m, x: x * next(loader), {}),
    ]
    for odd, attributes in held:
        assert "would be advanced by a re-run" in again(*uses(odd, **attributes))
    assert [next(STREAM), next(numbers), int(next(loader))] == [1, 1, 1]


def test_globals_that_no_forward_names_do_not_matter() -> None:
    assert again(*uses(lambda m, x: x)) == ""  # STREAM lies beside it


def test_what_a_module_holds_and_its_forward_does_not_name_keeps_nothing_from_being_run() -> None:
    """As the way back to a trainer, which reads its loader at the time."""

    class Trainer:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.reads = model, iter([1, 2])

    model, x = uses(lambda m, x: getattr(m, "_training_by", 0) and None)
    model.trainer = Trainer(model)
    assert again(model, x) == ""
    model._training_by = Trainer(model)
    assert "advanced" in again(model, x)


def test_an_iterator_in_the_batch_is_not_used_up_and_a_generator_goes_back() -> None:
    def odd(model: Any, x: Any) -> torch.Tensor:
        rows, generator = x
        return rows.take() + torch.rand(1, generator=generator)

    class Rows:
        def __init__(self, rows: torch.Tensor) -> None:
            self.rows, self.taken = rows, 0

        def take(self) -> torch.Tensor:
            self.taken += 1
            return self.rows

    model, generator, rows = Uses(odd), torch.Generator(), Rows(torch.randn(4, WIDTH))
    before = generator.get_state()
    assert again(model, (rows, generator)) == ""
    assert rows.taken == 0 and torch.equal(generator.get_state(), before)
    assert "advanced" in again(model, iter([1]))


def writes(path: Path) -> dict[str, Odd]:
    return {
        "open": lambda m, x: path.open("a").write("x"),
        "torch.save": lambda m, x: torch.save(1, path),
        "remove": lambda m, x: m.first and os.remove(path),
        "subprocess": lambda m, x: subprocess.run([sys.executable, "-c", ""], check=True),
        "socket": lambda m, x: m.socket.send(b"x"),
        "thread": lambda m, x: threading.Thread(target=m.told.append, args=[1]).start(),
        "pool": lambda m, x: m.pool.submit(m.told.append, 1).result(),
        "queue": lambda m, x: m.queue.get(),
        "event": lambda m, x: m.event.wait() and m.event.clear(),
        "update": lambda m, x: m.optimizer.step(),
    }


@pytest.mark.parametrize("what", writes(Path()))
def test_the_world_does_not_hear_of_it(what: str, tmp_path: Path) -> None:
    """Nor does the re-run wait for somebody who will not come: queue and event are empty now."""
    path = tmp_path / "written"
    path.write_text("before")
    here, there = socket.socketpair()
    lines: queue.Queue[int] = queue.Queue()
    lines.put(1)
    event = threading.Event()
    event.set()
    odd = writes(path)[what]
    with ThreadPoolExecutor(2) as pool:
        model = Uses(odd)
        model.first, model.told, model.socket, model.pool = False, [], here, pool
        model.queue, model.event = lines, event
        model.optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)
        x = torch.randn(4, WIDTH)
        model(x).sum().backward()
        model.first = True
        there.recv(1) if what == "socket" else None
        written, told = path.read_bytes(), list(model.told)
        weight = model.layer.weight.detach().clone()
        threads = threading.active_count()
        assert "cannot be taken back" in (said := again(model, x)) or "would be made" in said
        assert (path.read_bytes(), model.told) == (written, told)
        assert threading.active_count() == threads
        assert torch.equal(model.layer.weight, weight)
        assert event.is_set() is (what != "event")
    here.close()
    there.close()
    assert open.__module__ in ("_io", "io") and "send" not in vars(socket.socket)


def test_files_that_are_open(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("one\ntwo\nthree\n")
    with path.open() as reads, path.open("a") as appends:
        assert again(*uses(lambda m, x: m.file.readline(), file=reads)) == ""
        assert reads.readline() == "two\n"
        assert "a file" in again(*uses(lambda m, x: m.file.write(""), file=appends))


def test_what_is_printed_and_logged_comes_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what another thread says meanwhile is said."""
    log = logging.getLogger("tests.odd")
    log.propagate = False
    log.addHandler(handler := logging.FileHandler(tmp_path / "log"))
    inside, said = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait(20)
        print("from another thread")
        log.warning("from another thread")
        said.set()

    def odd(model: Any, x: torch.Tensor) -> None:
        print("from the forward", file=model.out)
        log.warning("from the forward")
        if model.waits:  # by what no re-run is kept from
            inside_set()
            for _ in itertools.takewhile(lambda _: not said.is_set(), itertools.count()):
                os.sched_yield()

    def inside_set() -> None:
        go.append(1)

    go: collections.deque[int] = collections.deque()
    model, x = Uses(odd), torch.randn(4, WIDTH)
    model.out, model.waits = sys.stdout, False
    model(x)
    model.waits = True
    thread = threading.Thread(target=lambda: (wait_for_one(go), inside.set(), other()))
    thread.start()
    assert again(model, x) == ""
    thread.join()
    handler.close()
    log.removeHandler(handler)
    expected = ["from the forward", "from another thread"]
    assert capsys.readouterr().out.splitlines() == expected
    assert (tmp_path / "log").read_text().splitlines() == expected


def wait_for_one(go: collections.deque[int]) -> None:
    while not go:
        os.sched_yield()


def test_a_lock_that_the_loop_holds_is_not_waited_for() -> None:
    def odd(model: Any, x: torch.Tensor) -> None:
        with model.lock:
            pass

    model, x = uses(odd, lock=threading.Lock())
    with model.lock:
        assert again(model, x) == ""
        assert model.lock.locked()


def test_an_exit_in_the_second_run_is_none_of_the_script() -> None:
    def odd(model: Any, x: torch.Tensor) -> None:
        model.calls += 1
        if model.calls > 1:
            sys.exit(3)

    model, x = uses(odd, calls=0)
    assert "failed in its forward: SystemExit" in again(model, x)
    assert model.calls == 1


STOP = False


def test_a_signal_that_arrives_meanwhile_is_handled_afterwards() -> None:
    """What its handler sets stays, and what it raises reaches the script."""

    def on_usr1(number: int, frame: Any) -> None:
        global STOP
        STOP = True

    def on_usr2(number: int, frame: Any) -> None:
        raise TimeoutError("of the script")

    model, x = uses(lambda m, x: [signal.raise_signal(each) for each in m.signals], signals=[])
    before = [
        (number, signal.signal(number, handler))
        for number, handler in ((signal.SIGUSR1, on_usr1), (signal.SIGUSR2, on_usr2))
    ]
    try:
        model.signals = [signal.SIGUSR1]
        assert again(model, x) == "" and STOP
        assert signal.getsignal(signal.SIGUSR1) is on_usr1
        model.signals = [signal.SIGUSR2]
        with pytest.raises(TimeoutError):
            again(model, x)
        guarded = Boundary().guard("tap", lambda: signal.raise_signal(signal.SIGUSR2))
        with pytest.raises(TimeoutError):
            guarded()
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def test_hooks_on_what_graphs_save_are_not_met() -> None:
    packed: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(1)
        return tensor

    model, x = uses(lambda m, x: None)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert again(model, x) == "" and packed == []
        model(x)
    assert packed != []


def test_a_graph_that_the_script_has_kept_stays_whole() -> None:
    def odd(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.state = (model.state[0] * 0.5 + model.layer(x),)
        return x + model.state[0]

    model, x = Uses(odd), torch.randn(4, WIDTH)
    model.state = (torch.zeros(4, WIDTH, requires_grad=True),)
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    state = model.state[0]
    assert again(model, x) == ""
    assert model.state[0] is state and state.grad_fn is not None
    loss.backward()


def test_a_part_that_is_replicated_or_sharded_is_not_run_again(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        replicated = nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))
        sharded = nn.Sequential(nn.Linear(2, 2))
        fully_shard(sharded[0])
        for model, word in ((replicated, "DDP"), (sharded, "FSDP")):
            with pytest.raises(CannotKeep, match=word), sandbox([model]):
                raise AssertionError("something was run")
    finally:
        dist.destroy_process_group()


def test_collectives_would_wait_for_ranks_that_do_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model, x = uses(lambda m, x: dist.all_reduce(x.clone()))
        assert again(model, x) == ""
        monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
        assert "other ranks" in again(model, x)
    finally:
        dist.destroy_process_group()


class Langevin(torch.optim.SGD):
    """Adds noise, and counts for all of its kind."""

    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        Langevin.steps += 1
        for group in self.param_groups:
            for param in group["params"]:
                param.add_(torch.randn_like(param) / param.grad)


def test_an_optimizer_that_is_run_again_draws_nothing() -> None:
    param = nn.Parameter(torch.ones(2))
    param.grad = torch.zeros(2)
    optimizer = Langevin([param], lr=0.1)
    before = torch.get_rng_state()
    found = optimizing.trace_optimizer(optimizer, names={id(param): "weight"})
    assert found.first is not None and found.first.op == "aten::div"
    assert torch.equal(torch.get_rng_state(), before) and Langevin.steps == 0


def test_a_cache_that_grows_is_told() -> None:
    import functools

    @functools.lru_cache
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    model, x = uses(lambda m, x: m.doubled(x), doubled=doubled)
    with sandbox([model]) as kept:
        model(x.clone())
    assert CACHE_GREW in kept.notes
