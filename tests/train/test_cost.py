"""What one step makes tuimon do, counted: calls of ours, operators, bytes. Times decide nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import tuimon
from tests.bench.loops import LOOPS, Loop
from tests.train.conftest import Feed
from tuimon.feed.codec import encode
from tuimon.train import modes
from tuimon.train import monitor as monitors
from tuimon.train.facts import clearing

OURS = str(Path(tuimon.__file__).parent)
WARM_UP = 12  # first batches, first checks of the weights
STEPS = 8
# What a step of the smallest loop made tuimon call when this was written, and some more: a step
# of 300 µs carries about 100 calls within its budget of a fifth. Lower it when there are fewer.
MAX_CALLS = {False: 66, True: 107}


class Operators(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count[str(function).split(".")[1]] += 1
        return function(*args, **(kwargs or {}))


def watched(loop: Loop) -> tuimon.Monitor:
    """Warm, and without samples, which pay for themselves."""
    monitor = tuimon.watch(loop.model, loop.optimizer, budget_frac=0)
    for _ in range(WARM_UP):
        loop.step()
    return monitor


def calls_in(action: Callable[[], Any]) -> Counter[str]:
    """Python functions of tuimon that an action calls."""
    calls: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first updates are looked at more closely than all later ones: here there are few."""
    monkeypatch.setattr(clearing, "FIRST_UPDATES", WARM_UP // 2)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes see what tuimon runs, too."""
    monkeypatch.setattr(modes, "function_modes", int)
    monkeypatch.setattr(modes, "dispatch_modes", int)
    monkeypatch.setattr(monitors, "_wiring", None)


def operators_in(loop: Loop) -> Counter[str]:
    with Operators() as seen:
        loop.step()
    return seen.count


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", ["tiny", "many"])
def test_a_step_calls_few_functions_of_ours(feed: Feed, name: str, clip: bool) -> None:
    loop = LOOPS[name](clip)
    watched(loop)
    steps = [sum(calls_in(loop.step).values()) for _ in range(STEPS)]
    assert 0 < sorted(steps)[STEPS // 2] <= MAX_CALLS[clip], calls_in(loop.step).most_common()


def test_gradients_are_measured_by_one_operator_and_read_once(feed: Feed, seen: None) -> None:
    loop = LOOPS["tiny"](False)
    monitor = watched(loop)
    with_us = operators_in(loop)
    with monitor.detached():
        bare = operators_in(loop)
    norms = len(list(loop.model.parameters()))
    assert with_us - bare == {"_foreach_norm": 1, "_local_scalar_dense": norms + 1}


def test_many_norms_are_read_at_once(feed: Feed, seen: None) -> None:
    loop = LOOPS["many"](False)
    monitor = watched(loop)
    with_us = operators_in(loop)
    with monitor.detached():
        bare = operators_in(loop)
    found = with_us - bare
    assert found["_foreach_norm"] == found["stack"] == found["_local_scalar_dense"] == 1
    assert sum(found.values()) <= 4


def test_a_loop_that_clips_has_its_norms_already(feed: Feed, seen: None) -> None:
    loop = LOOPS["tiny"](True)
    monitor = watched(loop)
    with_us = operators_in(loop)
    with monitor.detached():
        bare = operators_in(loop)
    assert {*(with_us - bare)} == {"_local_scalar_dense"}


def test_a_step_is_published_in_few_bytes(feed: Feed) -> None:
    loop = LOOPS["many"](False)
    watched(loop)
    norms = sum(4 for _ in loop.model.parameters())
    assert norms < len(encode(feed.steps[-1])) <= norms + 200
