"""Tests whether a loss fails for its labels: it is called again with labels within its range.

Runs after the script has failed, on copies of what stands in the frame of torch's own function;
no code of the script's is called, and nothing that lies on a device.
"""

from __future__ import annotations

import inspect
import time
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from tuimon.diagnose.findings import Finding, Where
from tuimon.model.crash import Crash
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE, TrialRecord
from tuimon.train.autopsy import looks
from tuimon.train.trials.changes import told
from tuimon.train.trials.judging import Judgement

WORDS = "the loss was called with its labels clamped to their range"
_OF_CLASSES = ("cross_entropy", "nll_loss")
_OF_PROBABILITIES = ("binary_cross_entropy",)
RUNS = 3  # as it was, in another order, clamped
MOST = 1 << 24  # elements that are copied


class _Called(NamedTuple):
    """A call of a loss of torch's that has failed."""

    name: str
    given: dict[str, Any]


def label_trial(error: BaseException, crash: Crash) -> TrialRecord | None:
    """The trial of the labels of a crash, where there is one to make."""
    began_s = time.perf_counter()
    judgement = clamped_labels(error)
    if judgement is None:
        return None
    finding = Finding(
        cause="label-range",
        severity="critical",
        confidence=0.0,
        status="consistent",
        step=crash.step,
        where=Where(module=crash.module, op=crash.op or None, rank=crash.rank),
    )
    return TrialRecord(
        finding=finding.id,
        cause=finding.cause,
        change=WORDS,
        result=judgement.result,
        detail=judgement.detail,
        step=crash.step,
        rank=crash.rank,
        module=crash.module,
        op=crash.op,
        runs=RUNS,
        duration_s=time.perf_counter() - began_s,
        time_ns=time.time_ns(),
    )


def clamped_labels(error: BaseException) -> Judgement | None:
    """What the loss does with clamped labels; None where no loss failed, or none is outside."""
    called = _called(error)
    if called is None:
        return None
    with looks.apart(), torch.no_grad():
        target = called.given["target"]
        clamped = _clamped(called)
        if clamped is None:
            return None
        outside = int((clamped != target).sum())
        if not outside:
            return None
        # The placebo: the same labels in another order are as bad.
        if not _fails(called, target) or not _fails(called, target.flip(0)):
            return Judgement(NO_DIFFERENCE, "called again as it was, it did not fail")
        words = f"{told(outside, 'label')} of {target.numel():,} clamped"
        if _fails(called, clamped):
            return Judgement(NO_DIFFERENCE, f"{words}, and it fails as before")
        detail = f"{words}, and it runs; in another order, unclamped, it fails as before"
        return Judgement(CONFIRMED, detail)


def _called(error: BaseException) -> _Called | None:
    traceback, frame = error.__traceback__, None
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") == functional.__name__:
            frame = traceback.tb_frame
        traceback = traceback.tb_next
    return None if frame is None else _in_frame(frame)


def _in_frame(frame: FrameType) -> _Called | None:
    name = frame.f_code.co_name
    function = getattr(functional, name, None)
    if name not in _OF_CLASSES + _OF_PROBABILITIES or function is None:
        return None
    local = frame.f_locals
    given = {each: local[each] for each in inspect.signature(function).parameters if each in local}
    tensors = [given.get("input"), given.get("target"), given.get("weight")]
    for each in tensors:
        if each is not None and not _is_readable(each):
            return None
    return _Called(name, given) if tensors[0] is not None and tensors[1] is not None else None


def _is_readable(value: Any) -> bool:
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    return plain and value.device.type == "cpu" and 0 < value.numel() <= MOST


def _clamped(called: _Called) -> torch.Tensor | None:
    given, target = called.given["input"], called.given["target"]
    if called.name in _OF_PROBABILITIES:
        return target.clamp(0, 1) if target.is_floating_point() and target.dim() else None
    if target.is_floating_point() or not given.dim() or not target.dim():
        return None
    classes = given.shape[1 if given.dim() > 1 else 0]
    kept = target == called.given.get("ignore_index", -100)
    return torch.where(kept, target, target.clamp(0, classes - 1))


def _fails(called: _Called, target: torch.Tensor) -> bool:
    function = getattr(functional, called.name)
    given = {
        name: each.detach().clone() if isinstance(each, torch.Tensor) else each
        for name, each in called.given.items()
    }
    given["target"] = target
    # What these say of how a mean is taken is said by `reduction` already.
    given |= {name: None for name in ("size_average", "reduce") if name in given}
    try:
        function(**given)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return True
    return False
