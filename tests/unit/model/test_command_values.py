"""Commands say themselves when they make no sense, and travel as data only."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.model import commands as c


@pytest.mark.parametrize(
    "command",
    [
        c.StepOnce(0),
        c.StepOnce(-1),
        c.StepOnce(10**9),
        c.SetClip("maybe"),
        c.SetClip("on", 0.0),
        c.SetClip("on", math.nan),
        c.SetClip("on", math.inf),
        c.SetClip("off", 1.0),
        c.SetMaxNorm(-1.0),
        c.Dump([], "/tmp"),
        c.Dump(["a"], "relative"),
        c.Dump(["a"], "/tmp/\0"),
        c.Dump(["a" * 5000], "/tmp"),
        c.Dump(["a"] * 20_000, "/tmp"),
    ],
)
def test_senseless_commands_have_a_problem(command: c.Command) -> None:
    assert command.problem()


@pytest.mark.parametrize(
    "command",
    [
        c.Pause(),
        c.Resume(),
        c.StepOnce(3),
        c.SetClip("on", 1.0),
        c.SetClip("on"),
        c.SetClip("off"),
        c.SetClip("user"),
        c.SetMaxNorm(0.5),
        c.Dump(["0.weight"], "/tmp/x"),
        c.Stop(),
    ],
)
def test_good_commands_have_none_and_survive_the_wire(command: c.AnyCommand) -> None:
    assert command.problem() == ""
    request = c.Request("id", "me@host", command, 1.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=c.Request) == request


@given(st.floats())
def test_any_max_norm_is_either_refused_or_usable(value: float) -> None:
    assert bool(c.SetMaxNorm(value).problem()) == (not math.isfinite(value) or value <= 0)
