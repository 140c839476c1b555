"""One fault each, of every kind: operation, phase, module and line are those an expert names."""

from __future__ import annotations

import pytest
import torch

from tests.train.autopsy.faults_backward import BACKWARDS
from tests.train.autopsy.faults_forward import FORWARDS
from tests.train.autopsy.patients import Net, batch, check, examine_loop, examine_model, take
from tuimon.model.autopsy import BACKWARD

FAULTS = FORWARDS | BACKWARDS


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("name", FAULTS)
def test_the_model_again(name: str) -> None:
    fault = FAULTS[name]
    torch.manual_seed(3)
    check(examine_model(Net(fault.part()), batch()), fault)


@pytest.mark.parametrize("name", FAULTS)
def test_the_loop_again(name: str) -> None:
    fault = FAULTS[name]
    torch.manual_seed(4)
    check(examine_loop(Net(fault.part()), batch()), fault)


@pytest.mark.parametrize("name", BACKWARDS)
def test_a_backward_fault_is_one(name: str) -> None:
    torch.manual_seed(3)
    fault = BACKWARDS[name]
    step = take(Net(fault.part()), batch())
    assert fault.phase == BACKWARD and not step.loss_bad and step.bad
