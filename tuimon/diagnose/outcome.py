"""The one word that sums a run up: the first of `causes.OUTCOMES` that holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tuimon.diagnose.amp import COLLAPSING
from tuimon.diagnose.findings import Finding
from tuimon.model.causes import SEVERITIES
from tuimon.model.records import Symptom

# Nothing healthy after one of these means that the weights are lost.
_DIVERGENCE = frozenset(
    ("non-finite-parameter", "non-finite-gradient", "non-finite-loss", "explosion")
)
# The training goes on and learns nothing. These are warnings only where the loss says so too.
_STALLS = frozenset(
    (
        "dead-units",
        "frozen-parameters",
        "plateau",
        "saturated-output",
        "slow-progress",
        "vanishing-gradient",
    )
)
_CRASHES = frozenset(("exception", "killed"))


def outcome(
    *,
    exit_kind: str,
    exit_code: int | None,
    symptoms: Iterable[Symptom],
    findings: Iterable[Finding],
    unrecovered: Collection[str],
    amp_verdict: str,
) -> str:
    """Sum a run up.

    Args:
        exit_kind: "ok" | "exception" | "killed" | "stopped".
        exit_code: status of the script; one that is not 0 under "ok" is a crash too.
        unrecovered: kinds of critical incidents that nothing healthy has followed.
    """
    if exit_kind in _CRASHES or (exit_kind == "ok" and exit_code not in (None, 0)):
        return "crashed"
    if not _DIVERGENCE.isdisjoint(unrecovered):
        return "diverged"
    # A scaler that leaves out every update leaves the weights where they are.
    if amp_verdict == COLLAPSING:
        return "stalled"
    found = list(symptoms)
    if any(SEVERITIES.index(each.severity) > 0 and each.kind in _STALLS for each in found):
        return "stalled"
    refuted = "refuted"
    severities = [symptom.severity for symptom in found]
    severities += [finding.severity for finding in findings if finding.status != refuted]
    if any(SEVERITIES.index(severity) > 0 for severity in severities):
        return "unhealthy"
    return "healthy"
