"""A re-run leaves nothing behind, whatever happens in it."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from tests.train.autopsy.patients import WIDTH, Net, Part, batch, examine_model, square, take
from tuimon.model.autopsy import NOT_REPRODUCED, OPERATION, UNKNOWN
from tuimon.train.autopsy.rerun import rerun_closure, rerun_model
from tuimon.train.autopsy.tracer import Limits


def traces() -> list[Any]:
    """Everything global that a re-run touches."""
    return [
        _len_torch_dispatch_stack(),
        dict(torch_module._global_forward_hooks),
        dict(torch_module._global_forward_pre_hooks),
        dict(torch_module._global_forward_hooks_always_called),
        torch.is_anomaly_enabled(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        warnings.showwarning,
        list(warnings.filters),
    ]


def _raise(error: BaseException) -> Any:
    def body(x: torch.Tensor) -> torch.Tensor:
        raise error

    return body


def test_gradients_hooks_and_modes_are_what_they_were() -> None:
    model = Net(Part(lambda x: (x * 0).log()))
    rows = batch()
    step = take(model, rows)
    fired = []
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(fired.append)
    kept = [(param, param.grad, param.grad.clone()) for param in model.parameters()]
    before = traces()
    for loss_bad in (True, False, None):
        rerun_model(model, (rows,), output_grads=step.grads, loss_bad=loss_bad)
        rerun_closure(lambda: square(model(rows)), roots=[("", model)], loss_bad=loss_bad)
    assert traces() == before and not fired
    for param, grad, value in kept:
        assert param.grad is grad
        assert torch.equal(grad.nan_to_num(7.0), value.nan_to_num(7.0))
    model.zero_grad()
    square(model(rows)).backward()
    assert len(fired) == len(kept)


@pytest.mark.parametrize(
    "error", [ValueError("odd \x1b[31m shape"), RuntimeError("no"), SystemExit(3)]
)
def test_an_error_of_the_script_becomes_a_note(error: BaseException) -> None:
    before = traces()
    model = Net(Part(_raise(error)))
    found = rerun_model(model, (batch(),), loss_bad=True)
    assert found.verdict == UNKNOWN and type(error).__name__ in found.notes[0]
    assert "\x1b" not in found.notes[0]
    assert traces() == before


def test_the_end_of_the_program_goes_through() -> None:
    before = traces()
    with pytest.raises(KeyboardInterrupt):
        rerun_model(Net(Part(_raise(KeyboardInterrupt()))), (batch(),))
    assert traces() == before


def test_an_error_in_the_backward_leaves_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise LookupError("gone")

    model, before = Net(Part(Refuses.apply)), traces()
    grads = [torch.ones(4, 2)]
    found = rerun_model(model, (batch(),), output_grads=grads, loss_bad=False)
    assert found.verdict == UNKNOWN and "failed in its backward" in found.notes[0]
    assert traces() == before and capfd.readouterr() == ("", "")


def test_it_ends_at_its_deadline_and_at_its_limit() -> None:
    before = traces()
    model = Net(Part(lambda x: [x := x + 1 for _ in range(100)][-1]))
    seconds = itertools.count()
    late = Limits(deadline_s=3, clock=lambda: float(next(seconds)))
    found = rerun_model(model, (batch(),), loss_bad=True, limits=late)
    assert found.stopped and found.verdict == UNKNOWN and "lack of time" in found.notes[0]
    assert found.ops < 100
    found = rerun_model(model, (batch(),), loss_bad=True, limits=Limits(max_ops=20))
    assert found.stopped and found.ops == 21
    assert traces() == before


def test_it_ends_in_the_backward_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    before = traces()
    model = Net(Part(lambda x: [x := x.sin() for _ in range(50)][-1]))
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        within = traces()
        found = rerun_model(
            model,
            (batch(),),
            output_grads=[torch.ones(4, 2)],
            loss_bad=False,
            limits=Limits(max_ops=80),
        )
        assert traces() == within
    assert found.stopped and found.reached == "backward"
    assert traces() == before and capfd.readouterr() == ("", "")


def test_a_step_that_went_otherwise_is_told_apart() -> None:
    model = Net(Part(torch.tanh))
    found = rerun_model(model, (batch(),), output_grads=[None, None], loss_bad=False)
    assert found.verdict == NOT_REPRODUCED and "not like the step" in found.notes[0]
    step = take(model, rows := batch())
    found = rerun_model(model, (rows,), output_grads=step.grads)
    assert found.verdict == NOT_REPRODUCED and not found.notes
    assert torch.allclose(found.grads["pre.weight"], model.pre.weight.grad)
    assert torch.allclose(square(found.outputs), step.loss)


def test_hooks_of_others_do_no_harm() -> None:
    model = Net(Part(lambda x: (x * 0).log()))
    seen: list[str] = []
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: seen.append("pre"))
        module.register_forward_hook(lambda *_: seen.append("post"))
        module.register_full_backward_hook(lambda *_: None)
    found = examine_model(model, batch())
    assert found.verdict == OPERATION and found.first is not None
    assert (found.first.op, found.first.module) == ("aten::log", "part")
    assert len(seen) == 16


class _Odd(nn.Module):
    """Tensors of every kind pass through; only one is at fault."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.layer(x)
        odd = {
            "whole": torch.arange(3) // 2,
            "none": torch.empty(0, 4) * 2,
            "meta": torch.ones(2, device="meta") * 3,
            "complex": torch.fft.fft(y.detach()),
            "sparse": torch.eye(3).to_sparse() * 2,
            "row": torch.eye(3).to_sparse_csr(),
            "eight": torch.ones(4).to(torch.float8_e4m3fn),
            "brain": y.detach().bfloat16() * 2,
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "flag": torch.tensor([True, False]).logical_not(),
        }
        return {"y": (y * 0).log(), "odd": odd}


def test_tensors_of_every_kind_survive() -> None:
    found = rerun_model(_Odd(), (batch(),), loss_bad=True)
    assert found.first is not None and found.first.op == "aten::log", found
    assert any("cannot be looked at" in note for note in found.notes)


class _Opaque(torch.Tensor):
    """A wrapper whose values only it can reach."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def bare(x):
            return x.inner if isinstance(x, cls) else x

        result = func(*map(bare, args), **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result


def test_tensors_that_hide_their_values_are_not_guessed_at() -> None:
    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = _Opaque(torch.zeros(2)) + 1
            return (self.layer(x) - 1e9).exp().log() + hidden.inner  # here: beside the opaque

    found = rerun_model(Uses(), (batch(),), loss_bad=True)
    assert found.first is not None and found.first.op == "aten::log"
