"""Which causes are tested, and by which change. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules import RULES
from tuimon.diagnose.rules.operations import FLOAT16_MAX
from tuimon.model.autopsy import LEAF, OPERATION, Autopsy
from tuimon.model.causes import SEVERITIES
from tuimon.model.records import Symptom
from tuimon.train.trials.changes import Change, Finite, Mended
from tuimon.train.trials.guarding import Guarded, spot_of
from tuimon.train.trials.hiding import Hidden
from tuimon.train.trials.widening import Widened

MAX_CAUSES = 3  # of one examination

# A few samples of the batch are what these say is wrong.
OF_SAMPLES = frozenset(("data-degenerate", "data-outlier"))
# What these say is wrong may come with a few samples; which ones is worth knowing.
BY_SAMPLES = OF_SAMPLES | {
    "data-nonfinite",
    "masked-softmax", "empty-reduction", "div-zero", "sqrt-norm-zero", "log-zero", "domain-error",
    "exp-overflow", "where-trap", "zero-times-inf", "fp16-overflow",
}  # fmt: skip
# The kinds of leaves that they speak of.
_LEAVES = {
    "data-nonfinite": ("batch", "target", "constant"),
    "data-degenerate": ("batch", "target", "constant"),
    "uninit-weights": ("parameter", "buffer"),
    "norm-state": ("buffer",),
}


def candidates(autopsy: Autopsy) -> list[Finding]:
    """The likeliest causes by what an autopsy found, at the place that it found."""
    if autopsy.verdict not in (OPERATION, LEAF) or autopsy.bad_at_scale_1 is False:
        return []
    shown = Symptom(autopsy.trigger, autopsy.step, autopsy.rank, "critical", "")
    evidence = Evidence((shown,), None, "none", (autopsy,))
    found: dict[str, Finding] = {}
    for rule in RULES:
        try:
            concluded = list(rule.conclude(evidence))
        except Exception:  # a rule that needs more than that says nothing here
            continue
        for finding in concluded:
            known = found.get(finding.cause)
            if known is None or _weight(finding) > _weight(known):
                found[finding.cause] = finding
    return sorted(found.values(), key=_weight, reverse=True)[:MAX_CAUSES]


def _weight(finding: Finding) -> tuple[int, float]:
    return SEVERITIES.index(finding.severity), finding.confidence


def changes_for(cause: str, autopsy: Autopsy) -> Iterable[Change]:
    """The changes that would undo a cause, the most telling first; none where none is known."""
    if autopsy.verdict == LEAF:
        kind = autopsy.leaves[0].kind if autopsy.leaves else ""
        if kind in _LEAVES.get(cause, ()):
            yield Mended([leaf for leaf in autopsy.leaves if leaf.kind == kind])
        return
    if cause == "data-nonfinite":
        yield Finite()
    if autopsy.first is None:
        return
    spot = spot_of(autopsy.first)
    if cause == "where-trap":
        hidden = Hidden(spot)
        if hidden.is_possible:
            yield hidden
        return
    if cause == "fp16-overflow":
        yield Widened(spot, beyond=FLOAT16_MAX)
        return
    guarded = Guarded(spot, cause)
    if guarded.is_possible:
        yield guarded
        if cause == "eps-underflow" and guarded.count:
            yield Widened(spot)
