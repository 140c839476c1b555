"""Causes of an exception that ended the script, by what it says and what stood in the frame."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding, Remedy, Where
from tuimon.model.autopsy import OPTIMIZER
from tuimon.model.crash import Crash
from tuimon.model.explained import EXPLAINED
from tuimon.model.units import size_bytes

# PyTorch's own words, by the cause that they stand for.
_SAYINGS: tuple[tuple[str, str, float], ...] = (
    (r"Target -?\d+ is out of bounds", "label-range", 0.97),
    (r"all elements of target should be between 0 and 1", "label-range", 0.95),
    (r"Class values must be smaller than num_classes", "label-range", 0.95),
    (r"Class values must be non-negative", "label-range", 0.95),
    (r"Expected more than 1 value per channel when training", "norm-state", 0.97),
    (r"Expected more than 1 spatial element when training", "norm-state", 0.95),
    (r"Attempting to unscale FP16 gradients", "amp-order", 0.97),
    (r"unscale_\(\) has already been called", "amp-order", 0.97),
    (r"unscale_\(\) is being called after step\(\)", "amp-order", 0.97),
    (r"step\(\) has already been called since the last update", "amp-order", 0.95),
    (r"No inf checks were recorded for this optimizer", "params-stuck", 0.7),
    (r"does not require grad and does not have a grad_fn", "params-stuck", 0.93),
    (r"optimizer got an empty parameter list", "params-stuck", 0.9),
    (r"binary_cross_entropy.*unsafe to autocast", "loss-api", 0.9),
    (r"expected scalar type \w+ but found \w+", "loss-api", 0.6),
    (r"Using a target size .* different to the input size", "loss-api", 0.95),
    (r"Target size .* must be the same as input size", "loss-api", 0.95),
    (r"Expected target size", "loss-api", 0.93),
    (r"only batches of spatial targets supported", "loss-api", 0.93),
    (r"Expected input batch_size .* to match target batch_size", "loss-api", 0.93),
    (r"multi-target not supported", "loss-api", 0.93),
    (r"doesn't match the size of optimizer's group", "resume-state", 0.9),
    (r"contains a parameter group that doesn't match", "resume-state", 0.9),
    (r"different number of parameter groups", "resume-state", 0.93),
    (r"initial_lr' is not specified in param_groups", "resume-state", 0.93),
    (r"in loading state_dict for", "resume-state", 0.93),
    (r"\"\w*(nll|loss|entropy)\w*\" not implemented for '\w+'", "loss-api", 0.9),
    (r"Found dtype \w+ but expected \w+", "loss-api", 0.75),
    (r"differentiated Tensors (does not require grad|appears to not have)", "params-stuck", 0.8),
    (r"have finished reduction in the prior iteration", "dist-desync", 0.93),
    (r"expects same model across all ranks|mismatch between collectives", "dist-desync", 0.95),
    (
        r"[Tt]imed out waiting \d+ms for (send|recv)|collective operation timeout",
        "dist-desync",
        0.8,
    ),
    (r"Connection closed by peer", "dist-desync", 0.7),
    (r"device-side assert", "label-range", 0.6),
    (r"input\.numel\(\) == 0", "empty-reduction", 0.9),
    (r"dim \d+ to have non-zero size", "empty-reduction", 0.85),
    (r"expect\w* a non-empty (TensorList|list of)|must be non-empty", "empty-reduction", 0.85),
    (r"not positive-definite", "domain-error", 0.8),
    (r"singular|inversion could not be completed", "div-zero", 0.75),
)
# What a distribution or a factorisation refuses; a NaN among it has a cause of its own.
_REFUSED = re.compile(r"to satisfy the constraint (Indep\w*\()?(Greater|Interval|HalfOpen|Less)")
_INDEXED = re.compile(r"index (-?\d+ )?(is )?out of (range|bounds)|index out of range in self")
_PROBABILITIES = "all elements of input should be between 0 and 1"
_SHAPES = re.compile(r"size mismatch|must match the size of")


class Crashing:
    """Reads the scene of the crash."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        crash = evidence.circumstances.crash if evidence.circumstances else None
        if crash is None:
            return
        if crash.out_of_memory:
            asked = next((m.asked_bytes for m in crash.memory if m.asked_bytes), None)
            words = f"{size_bytes(asked)} could not be had" if asked else "an allocation failed"
            yield _finding("out-of-memory", crash, 0.97, words)
            return
        if _PROBABILITIES in crash.message:
            # Numbers that are not finite are refused in the same words.
            if not any(each.nan for each in crash.inputs):
                yield _finding("loss-api", crash, 0.93, _labels(crash))
            return
        for pattern, cause, confidence in _SAYINGS:
            if re.search(pattern, crash.message):
                yield _finding(cause, crash, confidence, _labels(crash))
                return
        if _REFUSED.search(crash.message) and "nan" not in crash.message:
            yield _finding("domain-error", crash, 0.85, _labels(crash))
        elif _INDEXED.search(crash.message):
            yield from _out_of_range(crash)
        elif _SHAPES.search(crash.message) and crash.phase == OPTIMIZER:
            yield _finding("resume-state", crash, 0.85, "the optimizer's state has other shapes")
        elif _SHAPES.search(crash.message) and "loss" in crash.op + crash.library:
            yield _finding("loss-api", crash, 0.8, _labels(crash))


def _out_of_range(crash: Crash) -> Iterator[Finding]:
    """An index beyond a table: labels in a loss, token numbers in an embedding."""
    if "loss" in crash.op or "one_hot" in crash.op or "scatter" in crash.op:
        yield _finding("label-range", crash, 0.9, _labels(crash))
    elif "embedding" in crash.op or crash.module_type.startswith("Embedding"):
        yield _finding("label-range", crash, 0.85, _labels(crash))


def _labels(crash: Crash) -> str:
    """The integers that stood in the frame, with their range."""
    for tensor in crash.inputs:
        if tensor.dtype.startswith("int") and tensor.low is not None and tensor.high is not None:
            return f"{tensor.name} {tensor.shape} holds {tensor.low:g} … {tensor.high:g}"
    return ", ".join(f"{t.name} {t.dtype} {t.shape}" for t in crash.inputs[:3])


def _finding(cause: str, crash: Crash, confidence: float, figures: str) -> Finding:
    explained = EXPLAINED[cause]
    place = crash.place
    said = f"{crash.kind}: {crash.message}"
    return Finding(
        cause=cause,
        severity="critical",
        confidence=confidence,
        status="consistent",
        step=crash.step,
        where=Where(
            module=crash.module,
            op=crash.op or None,
            phase=crash.phase,
            file=place.file if place else None,
            line=place.line if place else None,
            rank=crash.rank,
        ),
        evidence=[said, figures] if figures else [said],
        remedy=Remedy(text=explained.remedy, code=explained.code),
    )
