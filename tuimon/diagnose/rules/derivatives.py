"""Causes that lie in the derivative of an operation: the loss is finite, a gradient is not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import Verdict, described, from_autopsy
from tuimon.diagnose.rules.operations import Look, has_zero, look_at
from tuimon.model.autopsy import BACKWARD, INCOMING, OPERATION, Autopsy, TensorNote
from tuimon.model.units import number

NEAR = 8  # nodes towards the loss within which a selection can have shut a branch out
_NODE = re.compile(r"(.*?)Backward(\d*)")
_SELECTIONS = ("Where", "MaskedFill", "MaskedSelect", "MaskedScatter", "NanToNum")
# An infinite derivative beside the one at 0 stands for a second cause.
_BESIDE = {
    "Acos": ("sqrt-norm-zero", 0.9), "Asin": ("sqrt-norm-zero", 0.9),
    "Mul": ("exp-overflow", 0.4),
}  # fmt: skip
# What is differentiated at 0, and overflows only where its operands are large.
_AT_ZERO = ("Sqrt", "Norm", "LinalgVectorNorm", "Pow", "Div", "Reciprocal", "Rsqrt", "Log")
GROWN = 1e15  # magnitude of an operand that has run away, in single precision
NEAR_ZERO = 1e-6  # a divisor above that is no 0 of anyone's; half precision has coarser ones
_OF_TORCH = ("CheckpointFunction", "CompiledFunction", "Generated")  # not the user's own functions

# What is infinite in the derivative, with the cause it has where nothing was selected.
_DERIVATIVES = {
    "Sqrt": ("sqrt-norm-zero", 0.95, "the derivative of a square root is infinite at 0"),
    "Norm": ("sqrt-norm-zero", 0.95, "the derivative of a norm is not defined at 0"),
    "LinalgVectorNorm": ("sqrt-norm-zero", 0.95, "the derivative of a norm is not defined at 0"),
    "Pow": ("sqrt-norm-zero", 0.95, "a power below 1 has an infinite derivative at 0"),
    "Cdist": ("sqrt-norm-zero", 0.8, "the derivative of a distance is not defined at 0"),
    "Std": ("sqrt-norm-zero", 0.8, "the derivative of a spread is not defined at 0"),
    "Div": ("div-zero", 0.95, "the derivative of a quotient divides by the divisor once more"),
    "Reciprocal": ("div-zero", 0.95, "the derivative of 1/x is infinite at 0"),
    "Rsqrt": ("div-zero", 0.95, "the derivative of 1/sqrt(x) is infinite at 0"),
    "Log": ("log-zero", 0.95, "the derivative of a logarithm is infinite at 0"),
    "Acos": ("domain-error", 0.95, "the derivative of acos is infinite at -1 and 1"),
    "Asin": ("domain-error", 0.95, "the derivative of asin is infinite at -1 and 1"),
    "Erfinv": ("domain-error", 0.95, "the derivative of erfinv is infinite at -1 and 1"),
    "Lgamma": ("domain-error", 0.95, "the derivative of lgamma is infinite at 0"),
    "Logit": ("log-zero", 0.95, "the derivative of a logit is infinite at 0 and 1"),
    "Logsumexp": ("masked-softmax", 0.95, "every summand of one row was -Inf"),
    "Softmax": ("masked-softmax", 0.7, "one row held nothing but -Inf"),
    "WeightNormInterface": ("div-zero", 0.95, "a weight is divided by its norm, which is 0"),
    "LinalgSvd": ("div-zero", 0.8, "equal singular values: their difference is a divisor"),
    "LinalgEigh": ("div-zero", 0.8, "equal eigenvalues: their difference is a divisor"),
    "Atanh": ("domain-error", 0.95, "the derivative of atanh is infinite at -1 and 1"),
    "Acosh": ("domain-error", 0.95, "the derivative of acosh is infinite at 1"),
    "Atan2": ("sqrt-norm-zero", 0.7, "the derivative of atan2 is not defined at the origin"),
    "Exp": ("exp-overflow", 0.7, "exp had overflowed, or its product with the gradient does"),
    "Mul": ("zero-times-inf", 0.6, "a gradient of 0 met an infinity of the forward"),
}
_SAME = {
    "Log2": "Log", "Log10": "Log", "Log1P": "Log", "Xlogy": "Log", "Expm1": "Exp", "Exp2": "Exp",
    "Sinh": "Exp", "Cosh": "Exp", "Var": "Std", "StdMean": "Std", "VarMean": "Std", "Dist": "Norm",
    "EuclideanDist": "Cdist", "PairwiseDistance": "Norm", "Hypot": "Norm", "Arccos": "Acos",
    "TrueDivide": "Div", "FloatPower": "Pow", "LogSoftmax": "Softmax", "Logaddexp": "Logsumexp",
    "Logcumsumexp": "Logsumexp", "Digamma": "Lgamma", "Arcsin": "Asin", "Arctanh": "Atanh",
    "LinalgEig": "LinalgEigh", "Sinc": "Div", "WeightNorm": "WeightNormInterface",
}  # fmt: skip


class Derivatives:
    """Reads the first bad operation of each autopsy that found one in a backward."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        for autopsy in evidence.autopsies:
            site = autopsy.first
            if site is None or autopsy.verdict != OPERATION or site.phase != BACKWARD:
                continue
            operands = "; ".join(described(note) for note in site.inputs)
            for verdict in judge(look_at(autopsy, site)):
                yield from_autopsy(
                    verdict.cause,
                    autopsy,
                    evidence.symptoms,
                    confidence=verdict.confidence,
                    evidence=[verdict.reason, f"{site.op} in {site.node} received {operands}"],
                )


def judge(look: Look) -> Iterator[Verdict]:
    """The causes that a node of the backward shows."""
    found = _NODE.match(look.site.node)
    name, numbered = (found[1], found[2]) if found else ("", "")
    if found and not numbered and not name.startswith(_OF_TORCH):
        reason = f"{name}.backward gave a non-finite gradient from finite ones"
        yield Verdict("custom-backward", 0.93, reason)
        return
    known = _DERIVATIVES.get(_SAME.get(name.removesuffix("Scalar"), name.removesuffix("Scalar")))
    selection = _selection(look.autopsy)
    if known is None:
        if look.is_half and look.gives_inf:
            yield Verdict("fp16-overflow", 0.85, "a gradient is beyond 65504, the end of float16")
        return
    cause, confidence, reason = known
    if _SAME.get(name, name) in _AT_ZERO and _has_grown(look):
        return  # an overflow of what had run away before: no zero is to blame
    if _SAME.get(name, name) in _AT_ZERO:
        if _is_far_from_zero(look):
            return
        reason += _nearness(look)
    if selection.startswith("NanToNum"):
        mended = f"{selection} replaced the number and not its derivative; {reason}"
        yield Verdict(cause, max(confidence, 0.9), mended)
        yield Verdict("where-trap", 0.8, mended)
        return
    if selection:
        shut_out = f"{selection} shut the branch out and gave it a gradient of 0; {reason}"
        yield Verdict("where-trap", 0.95, shut_out)
        confidence = min(confidence, 0.6)
    yield Verdict(cause, confidence, reason)
    if name in _BESIDE and not selection:
        yield Verdict(*_BESIDE[name], reason)


def _selection(autopsy: Autopsy) -> str:
    """The nearest operation towards the loss that selects elements."""
    for node in autopsy.upstream[:NEAR]:
        found = _NODE.match(node)
        if found and found[1].startswith(_SELECTIONS):
            return node
    return ""


def _has_grown(look: Look) -> bool:
    """Whether operands have run away and none of them is 0."""
    notes = look.site.inputs
    sizes = [max(abs(note.minimum or 0.0), abs(note.maximum or 0.0)) for note in notes]
    return max(sizes, default=0.0) >= GROWN and not any(has_zero(note) for note in notes)


def _divisor(look: Look) -> TensorNote | None:
    """What the derivative divides by, where its division was seen with both its operands."""
    notes = [note for note in look.site.inputs if note.name != INCOMING]
    if look.op == "reciprocal":
        return next(iter(notes), None)
    return notes[-1] if look.op in ("div", "true_divide") and len(notes) > 1 else None


def _is_far_from_zero(look: Look) -> bool:
    note = _divisor(look)
    if note is None or note.minimum is None or note.dtype in ("float16", "bfloat16"):
        return False
    return note.minimum > NEAR_ZERO


def _nearness(look: Look) -> str:
    """How near to 0 it was differentiated, as far as that was seen."""
    if any(note.zeros for note in look.site.inputs if note.name != INCOMING):
        return ""  # the operands tell it
    note = _divisor(look)
    if note is not None and note.minimum is not None and note.minimum > 0:
        return f"; there it was divided by {number(note.minimum)}, no exact 0"
    return "; what it was taken of was not recorded: 0, or so near to it that this overflows"
