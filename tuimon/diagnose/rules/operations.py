"""Causes that the first bad operation of a forward shows by what it was given and what it gave."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import Verdict, described, from_autopsy
from tuimon.model.autopsy import FORWARD, OPERATION, Autopsy, OpSite, TensorNote
from tuimon.model.units import number

FLOAT16_MAX = 65504.0  # IEEE 754 binary16
GROWN = 1e15  # magnitude whose square is near the end of single precision
_LARGEST = {"float16": FLOAT16_MAX, "float64": 1.797e308}  # others end like float32
_LARGEST_FLOAT32 = 3.402e38
_EVEN = ("sinh", "cosh")  # infinite on both sides


@dataclass(frozen=True)
class Look:
    """One operation as the judges below see it.

    Attributes:
        op: aten name without namespace, leading and trailing underscores: "log", "softmax".
    """

    op: str
    site: OpSite
    autopsy: Autopsy

    @property
    def first(self) -> TensorNote | None:
        """The first operand."""
        return self.site.inputs[0] if self.site.inputs else None

    @property
    def gives_nan(self) -> bool:
        return any(note.nan for note in self.site.outputs)

    @property
    def gives_inf(self) -> bool:
        return any(note.posinf or note.neginf for note in self.site.outputs)

    @property
    def is_half(self) -> bool:
        """Whether it computed in float16."""
        return any(note.dtype == "float16" for note in self.site.outputs)

    @property
    def takes_inf(self) -> bool:
        """Whether an intended infinity was among its operands."""
        return any(note.posinf or note.neginf for note in self.site.inputs)

    @property
    def takes_nothing(self) -> bool:
        """Whether a reduction was given a tensor without any element."""
        return self.gives_nan and any(note.numel == 0 for note in self.site.inputs)

    @property
    def size(self) -> float:
        """The largest finite magnitude among its operands."""
        sizes = [max(abs(n.minimum or 0.0), abs(n.maximum or 0.0)) for n in self.site.inputs]
        return max(sizes, default=0.0)


Judge = Callable[[Look], Iterator[Verdict]]


def look_at(autopsy: Autopsy, site: OpSite) -> Look:
    """What judges need of an operation."""
    name = site.op.rpartition("::")[2].removeprefix("_foreach_").removeprefix("_fused_")
    return Look(name.strip("_"), site, autopsy)


class Operations:
    """Reads the first bad operation of each autopsy that found one in a forward."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        for autopsy in evidence.autopsies:
            site = autopsy.first
            if site is None or autopsy.verdict != OPERATION or site.phase != FORWARD:
                continue
            look = look_at(autopsy, site)
            judge = _nothing if look.takes_nothing else JUDGES.get(look.op, _overflow)
            operands = "; ".join(described(note) for note in site.inputs)
            for verdict in judge(look):
                yield from_autopsy(
                    verdict.cause,
                    autopsy,
                    evidence.symptoms,
                    confidence=verdict.confidence,
                    evidence=[verdict.reason, f"{site.op} received {operands}"],
                )


def has_zero(note: TensorNote | None) -> bool:
    """Whether it holds an exact 0, or may hold one where zeros were not counted."""
    if note is None or note.minimum is None or note.maximum is None:
        return False
    if note.zeros is not None:
        return note.zeros > 0
    return note.minimum == 0 or note.maximum == 0 or note.minimum < 0 < note.maximum


def _zero(note: TensorNote) -> str:
    """A 0 among its elements in words: where zeros were not counted it may only lie between."""
    is_known = bool(note.zeros) or 0 in (note.minimum, note.maximum)
    return "an exact 0" if is_known else "a number that is or may be 0"


def _logarithm(look: Look) -> Iterator[Verdict]:
    note = look.first
    if note is None or note.minimum is None:
        if note is None:
            yield from _by_its_output(look)
        return
    edge = -1.0 if look.op == "log1p" else 0.0
    if note.minimum < edge:
        yield Verdict(
            "domain-error",
            0.93,
            f"{look.op} received {number(note.minimum)}, outside its domain",
        )
    elif look.op == "logit" and note.maximum is not None and note.maximum > 1:
        reason = f"logit received {number(note.maximum)}, outside its domain"
        yield Verdict("domain-error", 0.93, reason)
    elif note.minimum == edge or look.op == "logit":
        at = edge if note.minimum == edge else 1.0
        yield Verdict("log-zero", 0.96, f"{look.op} received an argument of exactly {at:g}")
        yield from _from_data(look)


def _by_its_output(look: Look) -> Iterator[Verdict]:
    """Where its operands are gone: what it gave tells what it must have been given."""
    if look.op in _EXPONENTIALS:
        yield Verdict("exp-overflow", 0.95, f"{look.op} gave an infinity")
    elif look.gives_nan:
        reason = f"{look.op} gave NaN from finite numbers: they lie outside its domain"
        yield Verdict("domain-error", 0.95, reason)
    elif look.op.startswith("log") and look.gives_inf:
        yield Verdict("log-zero", 0.95, f"{look.op} gave an infinity: it received an exact 0")
    elif look.op == "rsqrt" and look.gives_inf:
        yield Verdict("div-zero", 0.85, "rsqrt gave an infinity: it received an exact 0")


def _from_data(look: Look) -> Iterator[Verdict]:
    """The operand came with the data: the sample is to blame rather than the model."""
    if any(note.name.startswith(("batch", "target")) for note in look.site.inputs):
        yield Verdict("data-degenerate", 0.6, "the argument came with the data, not from the model")


def _domain(low: float, high: float) -> Judge:
    def judge(look: Look) -> Iterator[Verdict]:
        note = look.first
        if note is None or note.minimum is None or note.maximum is None:
            if note is None:
                yield from _by_its_output(look)
            return
        if note.minimum < low or note.maximum > high:
            worst = note.minimum if note.minimum < low else note.maximum
            reason = f"{look.op} received {number(worst)}, outside [{low:g}, {high:g}]"
            yield Verdict("domain-error", 0.95, reason)
        elif look.op == "rsqrt" and has_zero(note):
            yield Verdict("div-zero", 0.93, f"rsqrt received {_zero(note)}")
            yield from _vanished(note)
        else:
            yield Verdict("domain-error", 0.7, f"{look.op} is infinite at the edge of its domain")

    return judge


def _power(look: Look) -> Iterator[Verdict]:
    base = look.first
    if base is None:
        yield from _by_its_output(look)
    if base is None or base.minimum is None or base.maximum is None:
        return
    if look.gives_nan and base.minimum < 0:
        reason = f"a power with a fractional exponent received {number(base.minimum)}"
        yield Verdict("domain-error", 0.95, reason)
    elif look.gives_inf and has_zero(base) and max(abs(base.minimum), base.maximum) < 1e9:
        reason = f"a power with a negative exponent received {_zero(base)}"
        yield Verdict("div-zero", 0.9, reason)
    else:
        yield from _overflow(look)


def _division(look: Look) -> Iterator[Verdict]:
    inputs = look.site.inputs
    divisor = inputs[-1] if len(inputs) > 1 or look.op == "reciprocal" else None
    if divisor is None:
        yield Verdict("div-zero", 0.85, "divided by a number that is 0 or not finite")
        if _is_zero(look.first):
            yield Verdict("empty-reduction", 0.84, "a sum of nothing was divided by a count of 0")
    elif has_zero(divisor):
        counted = look.gives_nan and _is_zero(look.first) and _is_zero(divisor)
        if counted and len(inputs) > 1:
            # One number by one number: far more often a masked mean than a length.
            reason = f"a sum of nothing was divided by a count of 0: {described(divisor)}"
            yield Verdict("empty-reduction", 0.95, reason)
        certainty = 0.8 if counted else 0.93
        yield Verdict("div-zero", certainty, f"divided by {_zero(divisor)} in {described(divisor)}")
        yield from _vanished(divisor)
        yield from _from_data(look)
    elif look.is_half:
        yield from _overflow(look)
    else:
        yield Verdict("div-zero", 0.5, f"the quotient by {described(divisor)} is out of range")


def _vanished(divisor: TensorNote) -> Iterator[Verdict]:
    """An epsilon of float16 that was none."""
    if divisor.dtype == "float16":
        reason = "the divisor is float16, where every epsilon below 6e-8 is 0"
        yield Verdict("eps-underflow", 0.94 if divisor.zeros else 0.6, reason)


def _is_zero(note: TensorNote | None) -> bool:
    """Whether it is one number, and that is 0."""
    return note is not None and note.numel == 1 and note.minimum == note.maximum == 0


def _nothing(look: Look) -> Iterator[Verdict]:
    yield Verdict("empty-reduction", 0.96, f"{look.op} was taken of no element at all")


def _spread(look: Look) -> Iterator[Verdict]:
    note = look.first
    if note is None or not look.gives_nan:
        yield from _overflow(look)
        return
    slices = max(1, max((each.numel for each in look.site.outputs), default=1))
    if note.numel <= slices:
        yield Verdict("div-zero", 0.96, f"{look.op} was taken of a single element: n - 1 is 0")


def _normalisation(look: Look) -> Iterator[Verdict]:
    if look.size >= GROWN:
        return  # the squares of what had run away overflow
    if look.gives_nan and not look.takes_inf:
        reason = f"{look.op} gave NaN of finite numbers, as it does where their spread is 0"
        yield Verdict("eps-underflow" if look.is_half else "div-zero", 0.7, reason)


def _mean(look: Look) -> Iterator[Verdict]:
    if look.takes_inf and look.gives_inf:
        reason = f"{look.op} took in an infinity that a factor of 0 or a selection should leave out"
        yield Verdict("zero-times-inf", 0.85, reason)
        yield Verdict("log-zero", 0.6, "the infinity may be the logarithm of a probability of 0")
    else:
        yield from _overflow(look)


def _class_loss(look: Look) -> Iterator[Verdict]:
    if look.gives_nan and not look.takes_inf:
        reason = "no target of the batch counts: all are ignored, or have a class weight of 0"
        yield Verdict("empty-reduction", 0.95, reason)
    elif look.gives_inf and look.takes_inf:
        reason = "the target class has probability 0: its logit is masked or underflowed"
        yield Verdict("log-zero", 0.6, reason)


def _softmax(look: Look) -> Iterator[Verdict]:
    if look.gives_nan and (look.autopsy.constants or any(n.neginf for n in look.site.inputs)):
        yield Verdict("masked-softmax", 0.95, "one row holds nothing but -Inf")


def _pole(look: Look) -> Iterator[Verdict]:
    yield Verdict("domain-error", 0.85, f"{look.op} has a pole at 0 and at negative integers")


def _exponential(look: Look) -> Iterator[Verdict]:
    note = look.first
    if note is None and look.gives_inf:
        yield from _by_its_output(look)
    if note is None or note.maximum is None or not look.gives_inf:
        return
    size = note.maximum if look.op not in _EVEN else max(abs(note.minimum or 0), abs(note.maximum))
    reason = f"{look.op} received {number(size)}; "
    if look.is_half:
        fits = size < _exponent_limit(look.op, "float32")
        reason += f"float16 ends at {number(_exponent_limit(look.op, 'float16'))}"
        yield Verdict("exp-overflow", 0.85, reason)
        yield Verdict("fp16-overflow", 0.8 if fits else 0.5, reason)
    else:
        reason += f"{note.dtype} overflows near {number(_exponent_limit(look.op, note.dtype))}"
        yield Verdict("exp-overflow", 0.96, reason)


def _exponent_limit(op: str, dtype: str) -> float:
    """The argument at which an exponential overflows."""
    largest = _LARGEST.get(dtype, _LARGEST_FLOAT32)
    return math.log2(largest) if op == "exp2" else math.log(largest * (1 + (op in _EVEN)))


def _product(look: Look) -> Iterator[Verdict]:
    if look.gives_nan and look.takes_inf:
        reason = "a factor of 0 met an infinity"
        if look.op != "mul":
            reason += ", or infinities of both signs were summed"
        yield Verdict("zero-times-inf", 0.95, reason)
    elif look.gives_nan and look.op == "mul" and any(has_zero(n) for n in look.site.inputs):
        yield Verdict("zero-times-inf", 0.93, "a factor of 0 met an infinite constant")
    else:
        yield from _overflow(look)


def _difference(look: Look) -> Iterator[Verdict]:
    if look.gives_nan and look.takes_inf:
        masked = bool(look.autopsy.constants) or any(note.neginf for note in look.site.inputs)
        reason = "an infinity was taken from an infinity"
        if masked and look.op in ("sub", "rsub"):
            reason += ": the largest of a row is -Inf where every entry of it is masked"
        yield Verdict("masked-softmax" if masked else "zero-times-inf", 0.85, reason)
    else:
        yield from _overflow(look)


def _alignment(look: Look) -> Iterator[Verdict]:
    if look.gives_inf and not look.takes_inf:  # a class of probability 0 has no alignment either
        reason = "no alignment exists: a target is longer than its input allows"
        yield Verdict("data-degenerate", 0.9, reason)


def _overflow(look: Look) -> Iterator[Verdict]:
    """Finite operands, an infinite result: out of the range of float16."""
    if not (look.is_half and look.gives_inf) or look.takes_inf:
        return
    sizes = [max(abs(note.minimum or 0.0), abs(note.maximum or 0.0)) for note in look.site.inputs]
    largest = max(sizes, default=0.0)
    reason = f"the result is beyond {FLOAT16_MAX:g}, the end of float16"
    if look.op == "to_copy" and largest > FLOAT16_MAX:
        reason = f"{number(largest)} was turned into float16, which ends at {FLOAT16_MAX:g}"
        if any(note.name.startswith("batch") for note in look.site.inputs):
            yield Verdict("data-scale", 0.85, f"the batch reaches {number(largest)}")
    yield Verdict("fp16-overflow", 0.93, reason)


_EXPONENTIALS = ("exp", "exp2", "expm1", "sinh", "cosh")
_SOFTMAXES = (
    *("softmax", "log_softmax", "safe_softmax", "logsumexp", "sparse_softmax"),
    *("scaled_dot_product_attention", "scaled_dot_product_flash_attention_for_cpu"),
)

JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("log", "log2", "log10", "log1p", "logit"), _logarithm),
    **dict.fromkeys(("sqrt", "rsqrt"), _domain(0.0, float("inf"))),
    **dict.fromkeys(("acos", "asin", "arccos", "arcsin", "atanh", "erfinv"), _domain(-1.0, 1.0)),
    **dict.fromkeys(("acosh", "arccosh"), _domain(1.0, float("inf"))),
    **dict.fromkeys(("pow", "float_power"), _power),
    **dict.fromkeys(("div", "true_divide", "reciprocal", "fmod", "remainder"), _division),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _spread),
    **dict.fromkeys(
        ("native_layer_norm", "native_batch_norm", "native_group_norm"), _normalisation
    ),
    **dict.fromkeys(("mean", "nanmean", "median", "sum", "neg", "mse_loss"), _mean),
    **dict.fromkeys(("lgamma", "digamma", "polygamma"), _pole),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "cross_entropy_loss"), _class_loss),
    **dict.fromkeys(_SOFTMAXES, _softmax),
    **dict.fromkeys(_EXPONENTIALS, _exponential),
    **dict.fromkeys(("mul", "mm", "bmm", "addmm", "baddbmm", "matmul"), _product),
    **dict.fromkeys(("sub", "add", "rsub"), _difference),
    **dict.fromkeys(("ctc_loss", "cudnn_ctc_loss"), _alignment),
}
