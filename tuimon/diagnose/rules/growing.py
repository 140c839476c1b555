"""Causes of a loss that grows without bound although no single operation is at fault."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.model.autopsy import FORWARD, OPERATION
from tuimon.model.records import Symptom
from tuimon.model.units import number

# Initialisation and usual rates assume inputs of order 1; standardised data rarely passes 10.
FAR_INPUT = 100.0
SUMMED = 32  # elements: below it a sum and a mean differ by less than learning rates do
# One update of a plain net multiplies the gradient by tens; a product over time or depth by more.
LEAP = 1e3
RECURRENT = 8  # calls of one module within a forward
_RECURRENT_KINDS = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
# What multiplies by weights: only there does their scale show.
_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "addmv", "mv", "convolution", "linear", "matmul")
_NON_FINITE = ("non-finite-loss", "non-finite-gradient", "non-finite-parameter")


class Growing:
    """The scale of data, loss or initial weights, a product over time, or the learning rate."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        overflow = _overflow_at_once(evidence)
        symptom = _growth(evidence) or overflow
        if symptom is None:
            return
        yield from _data(run, symptom)
        yield from _summed(run, symptom)
        if overflow is not None:
            yield from _initial(overflow)
            return
        leapt = _leap(run)
        recurrent = _recurrence(run)
        if recurrent and leapt >= LEAP:
            reasons = [f"the gradient norm grew {number(leapt)} times within one update", recurrent]
            yield from_symptom("grad-explode", symptom, 0.9, [*reasons, *_largest(run)])
        yield from _rate(run, symptom, leapt, less=bool(recurrent and leapt >= LEAP))


def _growth(evidence: Evidence) -> Symptom | None:
    """The worst explosion that was seen."""
    explosions = [s for s in evidence.symptoms if s.kind == "explosion" and s.severity != "info"]
    critical = [s for s in explosions if s.severity == "critical"]
    return next(iter(critical or explosions), None)


def _overflow_at_once(evidence: Evidence) -> Symptom | None:
    """Finite data and weights that overflow within a module in the first or second forward."""
    in_model = any(
        autopsy.first is not None
        and autopsy.verdict == OPERATION
        and autopsy.first.phase == FORWARD
        and autopsy.first.in_model
        and autopsy.first.op.rpartition("::")[2] in _PRODUCTS
        and autopsy.step <= 1
        for autopsy in evidence.autopsies
    )
    early = [s for s in evidence.symptoms if s.kind in _NON_FINITE and s.step in (0, 1)]
    return early[0] if in_model and early else None


def _data(run: Circumstances, symptom: Symptom) -> Iterator[Finding]:
    for tensor in run.inputs:
        if tensor.low is None or tensor.high is None or not tensor.dtype.startswith(("f", "b")):
            continue
        size = max(abs(tensor.low), abs(tensor.high))
        spread = tensor.std or 0.0
        if size >= FAR_INPUT and max(spread, abs(tensor.mean or 0.0)) >= FAR_INPUT / 4:
            reason = (
                f"input {tensor.name} spans {number(tensor.low)} … {number(tensor.high)} "
                f"with a standard deviation of {number(tensor.std)}"
            )
            yield from_symptom("data-scale", symptom, 0.93, [reason])
            return
    for seen in run.seen:
        target = seen.target
        if target is None or target.std is None or not target.dtype.startswith(("f", "b")):
            continue
        if max(target.std, abs(target.mean or 0.0)) >= FAR_INPUT:
            reason = (
                f"targets lie at {number(target.mean)} with a deviation of {number(target.std)}"
            )
            yield from_symptom("data-scale", symptom, 0.9, [reason])
            return


def _summed(run: Circumstances, symptom: Symptom) -> Iterator[Finding]:
    for seen in run.seen:
        elements = 1
        for size in seen.prediction.shape:
            elements *= size
        if seen.facts.reduction == "sum" and elements >= SUMMED:
            reason = f"the loss is a sum over {elements:,} elements ({seen.facts.op})"
            yield from_symptom("loss-scaling", symptom, 0.92, [reason])
            return


def _initial(symptom: Symptom) -> Iterator[Finding]:
    reason = "the first forward overflows although data and parameters are finite"
    yield from_symptom("bad-init", symptom, 0.9, [reason])


def _leap(run: Circumstances) -> float:
    """The largest factor between two gradient norms in a row among the newest ones."""
    pairs = [(a, b) for a, b in pairwise(run.grad_norms) if a > 0]
    return max((b / a for a, b in pairs), default=1.0)


def _recurrence(run: Circumstances) -> str:
    for kind in run.kinds:
        if kind in _RECURRENT_KINDS:
            return f"the model is recurrent ({kind}): backward multiplies one Jacobian a time step"
    calls, module = run.most_calls
    if calls >= RECURRENT:
        return f"{module or 'the root'} runs {calls} times within one forward"
    names = run.table.names if run.table else []
    found = next((name for name in names if name.rpartition(".")[2].startswith("weight_hh")), "")
    return f"{found} is applied once a time step" if found else ""


def _largest(run: Circumstances) -> list[str]:
    shares = run.shares()
    return [f"{shares[0][1]} has {100 * shares[0][0]:.0f} % of its square"] if shares else []


def _rate(run: Circumstances, symptom: Symptom, leapt: float, *, less: bool) -> Iterator[Finding]:
    norms = " → ".join(number(norm, 2) for norm in list(run.grad_norms)[-5:])
    reasons = [f"the learning rate is {number(run.top_rate)}; gradient norms: {norms}"]
    if leapt > 1:
        reasons.append(f"up to {number(leapt)} times more from one update to the next")
    yield from_symptom("lr-too-high", symptom, 0.6 if less else 0.8, reasons)
