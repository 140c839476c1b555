"""What made a value that the graph only knows as given: operation and line, from living frames."""

from __future__ import annotations

import random
import runpy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.autopsy.frame_variants import VARIANTS, Variant, data, net
from tuimon.model.autopsy import OPERATION, UNKNOWN
from tuimon.train.autopsy import bytecode, frames, looks
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.graph import walk
from tuimon.train.autopsy.ownership import Ownership, Refused
from tuimon.train.autopsy.poison import Poison, is_same

torch.set_num_threads(1)

pytestmark = [
    pytest.mark.skipif(not bytecode.is_readable(), reason="bytecode of another version"),
    pytest.mark.filterwarnings("ignore"),
]


class Stop(Exception):
    """Ends a loop after its incident."""


@contextmanager
def listening(*, stops: bool = True) -> Iterator[list[Examination]]:
    """Look at each backward of a bad loss as a monitor would."""
    found: list[Examination] = []
    original = torch.Tensor.backward

    def backward(loss: torch.Tensor, *args: Any) -> None:
        if not torch.isfinite(loss):
            poison = list(walk([loss]).poison)
            poison += [Poison(each) for each in BATCH if looks.is_bad(each)]
            found.append(frames.retrace(poison, roots=[]))
            if stops:
                raise Stop
        original(loss, *args)

    def remember(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        BATCH[:] = args

    hook = torch.nn.modules.module.register_module_forward_pre_hook(remember)
    torch.Tensor.backward = backward  # type: ignore[assignment,method-assign]
    try:
        yield found
    except Stop:
        pass
    finally:
        hook.remove()
        BATCH.clear()
        torch.Tensor.backward = original  # type: ignore[method-assign]


BATCH: list[torch.Tensor] = []


def of(loop: Callable[[], Any]) -> Examination:
    with listening() as found:
        loop()
    assert len(found) == 1, "no incident"
    return found[0]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_variants(variant: Variant) -> None:
    found = of(variant.loop)
    assert found.verdict == OPERATION, found.notes
    first = found.first
    assert first is not None
    assert (first.op, first.line) == (variant.op, variant.line)
    assert first.file == variant.loop.__code__.co_filename
    assert (first.module, first.in_model, first.phase) == ("", False, "forward")
    assert first.inputs and not any(note.nan + note.posinf for note in first.inputs)
    assert found.path[0] == first or found.path[0].op == first.op


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
x, y = torch.randn(9, 4), torch.rand(9)
def scaled(values):
    return (values - centre) / spread  # in a function
for start in range(0, 9, 4):
    part = y[start : start + 4]
    spread = 0 * part.sum()
    centre = part
    weights = scaled(part)
    for _ in range(2):
        loss = (model(x[start : start + 4]).squeeze(1) * weights).mean()
    loss.backward()
"""


def test_at_module_level(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    found = of(lambda: runpy.run_path(str(path), run_name="__main__"))
    assert found.first is not None
    assert (found.first.op, found.first.line) == ("aten::div", 8)
    assert found.first.source.endswith("# in a function")


# --- nothing is said ------------------------------------------------------------------------------


def noise_overwritten() -> None:
    model, (x, _) = net(), data()
    for _ in range(2):
        weights = torch.randn(9)
        weights = weights * 0
        weights = weights.log()
        (model(x).squeeze(1) * weights).mean().backward()


def batch_changed_in_place() -> None:
    model, (x, y) = net(), data()
    y = torch.rand(9).floor()
    for i in (4, 0):
        weights = y[i : i + 4]
        weights.log_()
        (model(x[i : i + 4]).squeeze(1) * weights).mean().backward()


def given_bad() -> None:
    model, (x, y) = net(), data()
    y[0] = float("nan")
    for i in (4, 0):
        weights = y[i : i + 4] * 2
        (model(x[i : i + 4]).squeeze(1) * weights).mean().backward()


def taken_from_an_iterator() -> None:
    model, (x, y) = net(), data()
    parts = iter(y.split(3))
    while True:
        weights = next(parts).flip(0)
        weights = weights.log()
        (model(x[:3]).squeeze(1) * weights).mean().backward()


def by_the_way(values: torch.Tensor, kind: Any) -> torch.Tensor:
    if kind.is_logarithm():  # a method of a class written in C
        return values.log()
    return values.sqrt()


def unknown_branch() -> None:
    model, (x, y) = net(), data()
    kind: Any = type("Kind", (), {"is_logarithm": weakref.ref(model)})()
    for i in (4, 0):
        weights = by_the_way(y[i : i + 4], kind)
        (model(x[i : i + 4]).squeeze(1) * weights).mean().backward()


def looks_at_its_locals() -> None:
    model, (x, y) = net(), data()
    for i in (4, 0):
        weights = y[i : i + 4].log()
        assert "weights" in locals()
        (model(x[i : i + 4]).squeeze(1) * weights).mean().backward()


def intended() -> None:
    model, (x, _) = net(), data()
    for i in (4, 0):
        weights = torch.full((4,), float("inf"))
        (model(x[i : i + 4]).squeeze(1) * weights).sum().backward()


@pytest.mark.parametrize(
    "loop",
    [
        noise_overwritten,
        batch_changed_in_place,
        given_bad,
        taken_from_an_iterator,
        unknown_branch,
        looks_at_its_locals,
        intended,
    ],
    ids=lambda loop: loop.__name__,
)
def test_refused(loop: Callable[[], None]) -> None:
    found = of(loop)
    assert (found.verdict, found.first) == (UNKNOWN, None)


def test_no_poison_no_search() -> None:
    assert frames.retrace([], roots=[]).ops == 0


def test_another_value_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out must be the value itself: one that differs in a finite element is not."""
    model, (x, y) = net(), data()
    with listening() as found:
        for i in (4, 0):
            weights = y[i : i + 4].log()
            weights.data[1] += 1e-6
            (model(x[i : i + 4]).squeeze(1) * weights).mean().backward()
    assert found[0].verdict == UNKNOWN


def test_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "VERSION", (3, 99))
    found = frames.retrace([Poison(torch.tensor(float("nan")))], roots=[])
    assert found.verdict == UNKNOWN
    assert found.notes == [frames.NEWER]


def test_time_is_bounded() -> None:
    ticks = iter(range(1 << 30))
    limits = frames.Limits(deadline_s=3, clock=lambda: float(next(ticks)))
    weights = torch.zeros(4)
    for _ in range(1):
        poison = weights.log()
        for value in range(4000):
            _ = value
        found = frames.retrace([Poison(poison[:2])], roots=[], limits=limits)
    assert (found.verdict, found.stopped) == (UNKNOWN, True)


# --- nothing is changed ---------------------------------------------------------------------------

CALLS = 0


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x[:1].zero_(),
        lambda x: torch.nn.functional.relu(x, inplace=True),
        lambda x: torch.add(x, 1, out=x),
        lambda x: torch.nn.functional.batch_norm(x[:, None], x[:1], x[1:2], training=True),
        torch.rand_like,
    ],
)
def test_what_is_not_its_own_is_not_written(write: Callable[[torch.Tensor], Any]) -> None:
    x = torch.arange(3.0)
    with Ownership() as own:
        assert own.owns(torch.zeros(2).add_(1))
        with pytest.raises(Refused):
            write(x)
    assert (x.tolist(), x._version) == ([0.0, 1.0, 2.0], 0)


def test_what_a_name_holds_now() -> None:
    def loop() -> None:
        a = b = c = 0
        for _ in range(2):
            a = 1
            c = b
            print(a)
            b = c

    code = bytecode.read(loop.__code__)
    (around,) = code.loops
    last = next(i for i, e in enumerate(code.instructions) if e.argval == "print")
    assert code.is_last_store("a", last - 1, last)
    assert not code.is_last_store("a", around.head, last)
    assert not code.is_last_store("b", 0, last)  # stored by an earlier round
    assert code.is_last_store("b", around.head, last)


class Items:
    """Counts what is asked of it."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.reads = 0
        self.missed: list[str] = []

    def __getitem__(self, part: slice) -> torch.Tensor:
        global CALLS
        CALLS += 1
        self.reads += 1
        print("read", self.reads)
        return self.values[part]

    def __getattr__(self, name: str) -> Any:
        self.__dict__["missed"].append(name)
        return 1


def everything(state: list[Any]) -> None:
    """A loop in which any second evaluation would be seen."""
    model, (x, y) = net(), data()
    items, history, numbers = Items(y), [], iter(range(100))
    counts: dict[str, int] = {}
    generator = torch.Generator().manual_seed(3)
    for i in (4, 0, 4, 0):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x[i : i + 4]).squeeze(1).float()
        target = items[slice(i, i + 4)]
        noise = torch.rand(4, generator=generator) * 0 + random.random() * 0
        weights = torch.log(target + noise * 0)
        x[i : i + 4].add_(0.5)
        history.append(weights)
        counts["steps"] = counts.get("steps", 0) + next(numbers) * items.unheard_of
        print(f"{counts} {weights}")
        loss = (out * weights).mean() + F_dropout(out).sum() * 0
        loss.backward()
        for param in model.parameters():
            param.data.add_(torch.randn(param.shape) * 0.1)
    state += [x, y, *model.parameters(), *(p.grad for p in model.parameters()), *history]
    state += [counts, items.reads, items.missed, next(numbers), generator.get_state()]
    state += [torch.get_rng_state(), torch.is_grad_enabled(), torch.is_autocast_cache_enabled()]
    state += [random.getstate(), x._version, y._version, CALLS]


def F_dropout(values: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(values, 0.5)


def _seen(capsys: pytest.CaptureFixture[str], *, watched: bool) -> list[Any]:
    global CALLS
    CALLS = 0
    torch.manual_seed(7)
    random.seed(7)
    state: list[Any] = []
    if watched:
        with listening(stops=False) as found:
            everything(state)
        assert [each.verdict for each in found] == [OPERATION, OPERATION]
        assert found[0].first is not None and found[0].first.op == "aten::log"
    else:
        everything(state)
    state.append(capsys.readouterr())
    return state


def test_nothing_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    alone = _seen(capsys, watched=False)
    watched = _seen(capsys, watched=True)
    assert len(alone) == len(watched)
    for one, other in zip(alone, watched, strict=True):
        if isinstance(one, torch.Tensor):
            bad = one.is_floating_point() and not bool(one.isfinite().all())
            assert is_same(one, other) if bad else torch.equal(one, other)
        else:
            assert one == other


def released() -> list[Any]:
    """The locals of a living function go when it lets go of them."""
    model, (x, y) = net(), data()
    for i in (4, 0):
        weights = y[i : i + 4].log()
        loss = (model(x[i : i + 4]).squeeze(1) * weights).mean()
        loss.backward()
    gone = [weakref.ref(weights), weakref.ref(loss)]
    del weights, loss
    return [each() for each in gone]


def test_nothing_is_kept() -> None:
    with listening(stops=False) as found:
        alive = released()
    assert found[0].verdict == OPERATION
    assert alive == [None, None]
