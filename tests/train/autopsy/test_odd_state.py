"""State at odd places is put back too, or nothing is run: nobody can tell of a second run."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from tests.train.autopsy import odd_models_of_torch
from tests.train.autopsy.odd_models import CASES, WIDTH
from tuimon.train.autopsy.rerun import rerun_model
from tuimon.train.autopsy.restore import CannotKeep
from tuimon.train.autopsy.sandbox import sandbox

assert odd_models_of_torch  # its cases are among them


def again(model: nn.Module, *args: Any) -> str:
    """Run forward and backward a second time; what kept it from that, or ""."""
    try:
        with sandbox([model], also=args):
            given = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, args)
            seeds = [torch.ones(4, WIDTH)]
            found = rerun_model(model, given, output_grads=seeds, loss_bad=False)
    except CannotKeep as reason:
        return str(reason)
    ends = ("failed in", "given up")
    return next((note for note in found.notes if any(end in note for end in ends)), "")


def frozen(value: Any) -> Any:
    """A copy that no later change reaches."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: frozen(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(each) for each in value]
    return value if isinstance(value, int | float | str | bytes | None) else id(value)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_nobody_can_tell(name: str) -> None:
    torch.manual_seed(0)
    model, look = CASES[name]()
    x = torch.randn(4, WIDTH)
    model(x).sum().backward()  # as in the step that is looked at
    before = frozen(look())
    streams = torch.get_rng_state(), random.getstate()
    assert again(model, x) == ""
    assert same(before, frozen(look())), f"{before} became {frozen(look())}"
    assert torch.equal(streams[0], torch.get_rng_state()) and streams[1] == random.getstate()
    model(x).sum().backward()
    assert not same(before, frozen(look())) or name in STEADY, "the forward changes nothing there"


STEADY = {"a_cell_that_is_not_filled_yet"}
