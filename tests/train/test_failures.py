"""Whatever fails inside tuimon, at whatever place: the loop goes on and the numbers stay."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tuimon
from tests.train.conftest import Feed
from tests.train.test_loops import mse, net
from tests.train.twins import Diary, differences, run
from tuimon.train import boundary
from tuimon.train import monitor as monitors
from tuimon.train.autopsy import examine
from tuimon.train.boundary import MAX_FAILURES, Boundary

# Steps, of which one in so many overflows, and with how few failures a run is the last of its
# kind: functions of an update, of the beginning, of an autopsy, and those that are left over.
KINDS = ((100, 4, 1000), (4, 4, 4), (60, 2, 4), (4, 4, 0))
OURS = str(Path(tuimon.__file__).parent)
AUTOPSY = (f"{OURS}/train/autopsy", f"{OURS}/train/trials")
EVERY = 1 if os.environ.get("TUIMON_TESTS_WHOLE") == "1" else 3


def everything(
    diary: Diary,
    steps: int = 4,
    each: Callable[[int], None] = lambda step: None,
    overflows: int = 4,
) -> list[Any]:
    """A loop that meets every tap: data, forward, loss, scaling, clipping, closure, a stranger.

    One step in `overflows` is not finite.
    """
    made = torch.Generator().manual_seed(1)
    data = TensorDataset(*(torch.randn(4 * steps, width, generator=made) for width in (6, 1)))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    second = torch.optim.Adam(model[0].parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    diary(model, scaler=scaler)
    weights = []
    for step, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        each(step)
        optimizer.zero_grad()
        loss = mse(model(x * (1e38 if (step + 1) % overflows == 0 else 1)), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_((p for p in model.parameters()), 0.1)
        scaler.step(optimizer)
        scaler.update()

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            second.zero_grad()
            loss = mse(model(x), y)
            torch.autograd.backward([loss])
            return loss

        second.step(closure)
        if diary.monitor is not None:
            diary.monitor.log(a=step)
            with diary.monitor.step():
                pass
        weights.append(model[4].weight.detach().clone())
    return [weights, model, optimizer, second, scaler]


def close_all() -> None:
    for monitor in list(monitors._monitors):
        monitor.close()


Guard = Callable[[Boundary, str, Callable[..., Any]], Callable[..., Any]]


@pytest.fixture
def guard() -> Iterator[Guard]:
    original = Boundary.guard
    yield original
    Boundary.guard = original  # type: ignore[method-assign]


@pytest.mark.hazard(2)
def test_every_hook_may_fail(
    feed: Feed,
    guard: Guard,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each guarded body in turn raises: said once, disarmed, and the numbers are the same."""
    called: Counter[str] = Counter()
    broken = ""

    def breakable(self: Boundary, tap: str, body: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{tap}: {body.__qualname__}"

        def fails_if_chosen(*args: Any) -> Any:
            called[name] += 1
            if name == broken:
                raise ZeroDivisionError("on purpose")
            return body(*args)

        return guard(self, tap, fails_if_chosen)

    monkeypatch.setattr(Boundary, "guard", breakable)
    bare = run(everything, Diary(None))
    monkeypatch.setattr(monitors, "_wiring", None)
    assert differences(bare, run(everything, Diary(tuimon.watch))) == []
    hooks = dict(called)
    close_all()
    assert len(hooks) >= 10, "the loop does not meet the taps: the test is blind"
    for broken in hooks:
        monkeypatch.setattr(monitors, "_wiring", None)
        called.clear()
        capsys.readouterr()
        seen = len(feed.events)
        assert differences(bare, run(everything, Diary(tuimon.watch))) == [], broken
        told = Counter(event.kind for event in feed.events[seen:] if "on purpose" in event.text)
        count = min(called[broken], MAX_FAILURES)
        lines = [line for line in capsys.readouterr().err.splitlines() if "on purpose" in line]
        assert count > 0 and len(lines) == 1 and lines[0].startswith("tuimon: "), broken
        assert told["tap-failed"] + told["tap-disarmed"] == count, (broken, told)
        assert called[broken] <= MAX_FAILURES, "a disarmed tap was called"
        close_all()


def by_identity(codes: list[CodeType]) -> dict[int, CodeType]:
    return {id(code): code for code in codes}


class Saboteur:
    """Lets functions of ours fail, each at its first call, one in every guarded call of a step.

    Attributes:
        left: code that has not failed yet, by identity: to hash code is to hash its instructions.
        failed: by step.
    """

    def __init__(self, codes: list[CodeType]) -> None:
        self.left = by_identity(codes)
        self.failed: dict[int, list[CodeType]] = {}
        self._step = 0

    def strike(self, step: int) -> None:
        """A step begins."""
        self._step = step
        self.lurk()

    def lurk(self) -> None:
        """The next call of code that has not failed yet fails."""
        left = self.left

        def profile(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and id(code) in left:
                sys.setprofile(None)
                del left[id(code)]
                self.failed.setdefault(self._step, []).append(code)
                raise ZeroDivisionError("on purpose")

        sys.setprofile(profile)


def codes_of_ours(action: Callable[[Callable[[int], None]], Any]) -> list[CodeType]:
    """What is called by tuimon itself during the steps of a loop, in the order of the source.

    What torch calls is the outermost shell; nothing can stand around it, and it does nothing but
    ask whether to listen.
    """
    callers: dict[int, tuple[CodeType, str]] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and id(code) not in callers and code.co_filename.startswith(OURS):
            caller = frame.f_back
            callers[id(code)] = code, caller.f_code.co_filename if caller is not None else ""

    try:
        action(lambda step: sys.setprofile(profile))
    finally:
        sys.setprofile(None)
    shell = {wrapper.__code__ for wrapper in [Boundary().guard("", print)]}
    inner = [
        code
        for code, caller in callers.values()
        if caller.startswith(OURS) and code not in shell and code.co_flags & CO_OPTIMIZED
    ]  # bodies of classes and modules run once in a process
    return sorted(inner, key=lambda code: (code.co_filename, code.co_firstlineno))


def chosen(codes: list[CodeType]) -> list[CodeType]:
    """All that runs in the loop, and of an autopsy, where one failure costs 0.1 s, one in `EVERY`.

    TUIMON_TESTS_WHOLE=1 takes all of them. Functions of an autopsy stand behind few guards; what
    matters is where among them one fails.
    """
    loop = [code for code in codes if not code.co_filename.startswith(AUTOPSY)]
    return loop + [code for code in codes if code.co_filename.startswith(AUTOPSY)][::EVERY]


@pytest.mark.hazard(2)
@pytest.mark.timeout(240)
def test_every_function_may_fail(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the guarded bodies: every function that runs in the loop, and in an autopsy.

    What fails for the first time hides what it would have called, which fails the next time.
    """
    monkeypatch.setattr(boundary, "MAX_FAILURES", 1 << 30)  # else the first failures disarm
    failed = Boundary.failed
    saboteur = Saboteur([])

    def failed_and_on(self: Boundary, tap: str, error: Exception) -> None:
        failed(self, tap, error)
        saboteur.lurk()

    def watched(steps: int, each: Callable[[int], None], overflows: int = 4) -> dict[str, Any]:
        monkeypatch.setattr(monitors, "_wiring", None)
        try:
            return run(lambda diary: everything(diary, steps, each, overflows), Diary(tuimon.watch))
        finally:
            sys.setprofile(None)
            close_all()

    def sabotaged(steps: int, overflows: int, bare: dict[str, Any]) -> int:
        """How many functions failed in a run of so many steps."""
        saboteur.failed = {}
        found = differences(bare, watched(steps, saboteur.strike, overflows))
        wrong = [int(name.split(".")[1]) for name in found if name.startswith("0.")]
        culprits = saboteur.failed.get(min(wrong)) if wrong else saboteur.failed
        assert not found, f"{culprits} changed the numbers: {found}"
        return sum(map(len, saboteur.failed.values()))

    saboteur.left = by_identity(chosen(codes_of_ours(lambda each: watched(6, each))))
    count = len(saboteur.left)
    assert count > 100, "the loop does not meet our code: the test is blind"
    monkeypatch.setattr(Boundary, "failed", failed_and_on)
    # An autopsy at every overflow: one function fails in each, those that it would call later.
    monkeypatch.setattr(examine, "MAX_AUTOPSIES", 1 << 30)
    monkeypatch.setattr(examine, "MAX_EXAMINED", 1 << 30)
    for steps, overflows, last in KINDS:
        bare = run(partial(everything, steps=steps, overflows=overflows), Diary(None))
        for _ in range(count):
            if sabotaged(steps, overflows, bare) <= last:
                break
    assert len(saboteur.left) < 0.3 * count
