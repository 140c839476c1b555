"""Causes of tensors that were not finite before an operation touched them, and of bad updates."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import Verdict, described, from_autopsy
from tuimon.diagnose.rules.operations import has_zero, look_at
from tuimon.diagnose.rules.scaling import is_running
from tuimon.model.autopsy import LEAF, OPERATION, OPTIMIZER, Autopsy, PoisonedLeaf
from tuimon.model.verdict import samples_of

MAX_SAMPLES = 16  # that are listed
_DIVIDING = ("div", "addcdiv", "reciprocal", "rsqrt")


class Leaves:
    """Reads autopsies that found a poisoned leaf: data, parameter or buffer."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        for autopsy in evidence.autopsies:
            if autopsy.verdict != LEAF or not autopsy.leaves:
                continue
            leaf = autopsy.leaves[0]
            run = evidence.circumstances
            begun = run.loop.bad_buffers.get(leaf.tensor.name) if run is not None else None
            for verdict in _judge_leaf(autopsy, leaf, first_bad=begun):
                sample = leaf.samples[0] if leaf.samples else None
                named = leaf.kind in ("parameter", "buffer")
                yield from_autopsy(
                    verdict.cause,
                    autopsy,
                    evidence.symptoms,
                    confidence=verdict.confidence,
                    evidence=[verdict.reason, *(described(each.tensor) for each in autopsy.leaves)],
                    param=leaf.tensor.name if named else None,
                    sample=sample if leaf.kind in ("batch", "target") else None,
                )


class Updates:
    """Reads autopsies whose first bad operation lies in the optimizer."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        for autopsy in evidence.autopsies:
            site = autopsy.first
            if site is None or autopsy.verdict != OPERATION or site.phase != OPTIMIZER:
                continue
            look = look_at(autopsy, site)
            half = any(note.dtype in ("float16", "bfloat16") for note in site.inputs)
            by_zero = has_zero(site.inputs[-1] if site.inputs else None)
            name = autopsy.optimizer or "the optimizer"
            if look.op in _DIVIDING and half:
                cause, confidence = "eps-underflow", 0.95
                reason = (
                    f"{name} divided by 0: its state is {site.inputs[-1].dtype}, "
                    "and so is the epsilon that should guard the division"
                )
            elif look.op in _DIVIDING and by_zero:
                cause, confidence = "div-zero", 0.9
                reason = f"{name} divided by an exact 0 that no epsilon guards"
            else:
                cause, confidence = "lr-too-high", 0.6
                reason = "the update itself is beyond the range of the weights"
            yield from_autopsy(
                cause,
                autopsy,
                evidence.symptoms,
                confidence=confidence,
                evidence=[reason, *(described(note) for note in site.inputs)],
            )


def _judge_leaf(
    autopsy: Autopsy, leaf: PoisonedLeaf, *, first_bad: int | None = None
) -> Iterator[Verdict]:
    """Causes of a leaf that was not finite.

    Args:
        first_bad: step at which this buffer was seen to hold NaN first.
    """
    tensor = leaf.tensor
    if leaf.kind in ("parameter", "buffer", "optimizer-state") and autopsy.step == 0:
        reason = f"{leaf.kind} {tensor.name} is not finite before the first update"
        yield Verdict("uninit-weights", 0.95, reason)
    elif leaf.kind == "buffer" and first_bad == 0:
        reason = f"buffer {tensor.name} held NaN before the first update, where this step reads it"
        yield Verdict("uninit-weights", 0.95, reason)
    elif leaf.kind == "buffer":
        certainty = 0.9 if is_running(tensor.name) else 0.55
        reason = f"buffer {tensor.name} is not finite, its inputs are"
        yield Verdict("norm-state", certainty, reason)
    elif leaf.kind in ("batch", "target", "constant"):
        where = "input" if leaf.kind == "batch" else leaf.kind
        rows = f", {samples_of(leaf, MAX_SAMPLES)}" if leaf.samples else ""
        reason = f"the {where} {tensor.name} is not finite before any layer has seen it{rows}"
        computed = leaf.kind != "batch" and not tensor.nan
        if computed:
            why = "an infinity without any NaN is mostly computed: a logarithm or quotient of 0"
            yield Verdict("data-degenerate", 0.75, why)
        # A constant of the loss code may come from the data, or be computed without a graph.
        certainty = {"batch": 0.95, "target": 0.95}.get(leaf.kind, 0.55)
        yield Verdict("data-nonfinite", min(certainty, 0.7) if computed else certainty, reason)
