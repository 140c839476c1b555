"""What is said where no rule carries a cause: what was seen, and what would tell."""

from __future__ import annotations

from collections.abc import Iterable

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding, Remedy, Where
from tuimon.model.autopsy import NOT_REPRODUCED, Autopsy
from tuimon.model.causes import SEVERITIES, UNKNOWN
from tuimon.model.records import Symptom
from tuimon.model.units import number
from tuimon.model.verdict import sentence

SURE = 0.5  # a finding below it leaves the question open
CONFIDENCE = 0.2  # in "unknown" there is nothing to be sure of
MAX_EVIDENCE = 4
_NON_FINITE = "non-finite"
_SILENT = ("plateau", "slow-progress", "oscillation", "vanishing-gradient", "frozen-parameters")

_NEAR = 3  # updates between the harm and the look at the weights that shows why
_BESIDE = (
    "Something beside the optimizer changed a weight. Look for code that writes to parameters; "
    "if there is none, run the same seed again: what does not come back at the same step is "
    "consistent with a bad device. Go on from the last checkpoint before it.",
    "bad = [n for n, p in model.named_parameters() if p.abs().max() > 1e6]",
)
_EXAMINE = (
    "Run it again with `tuimon run --autopsy full --on-non-finite hold train.py`, so that the "
    "step is examined while its batch and its graph are alive.",
    'mon = tuimon.watch(model, optimizer, policy="hold")',
)
_NO_UPDATE = (
    "No update of an optimizer was seen, so that there was none to examine. Run one such step with "
    "loss.backward() and an optimizer of torch.optim: what is not finite there is traced to the "
    "operation that made it.",
    "loss.backward()\noptimizer.step()",
)
_REPEAT = (
    "The re-run did not show what the step showed. Hand the whole computation over, so that it "
    "can be repeated exactly: `loss = mon.forward(fn)(batch)`; random numbers that are drawn "
    "outside of torch, and files that are read in forward, make it differ.",
    "loss = mon.forward(compute_loss)(batch)",
)
_LOOK = (
    "Look at every layer: `watch(…, activations=True)` samples the outputs of all modules at "
    "least every 50 steps. Then train on one fixed batch: a loss that falls to next to nothing "
    "there clears model and optimizer and leaves the data.",
    "mon = tuimon.watch(model, optimizer, activations=True)",
)
_JUMP = (
    "`watch(…, activations=True)` samples the outputs of all modules, and the heat map of "
    "gradient norms shows by layer what grew first; a rate ten times lower that changes nothing "
    "clears the learning rate.",
    "mon = tuimon.watch(model, optimizer, activations=True)",
)


def abstain(evidence: Evidence, findings: Iterable[Finding]) -> Finding | None:
    """The finding "unknown" for the worst symptom that no cause was found for; None where one was.

    Args:
        evidence: of the whole run.
        findings: what the rules concluded.
    """
    if any(f.confidence >= SURE and f.status != "refuted" for f in findings):
        return None
    seen = [s for s in evidence.symptoms if s.severity != "info" and s.kind != "exception"]
    if not seen:
        return None
    worst = max(seen, key=lambda s: SEVERITIES.index(s.severity))
    autopsy = next((a for a in evidence.autopsies if a.trigger == worst.kind), None)
    autopsy = autopsy or next(iter(evidence.autopsies), None)
    beside = _changed_beside(evidence, worst)
    text, code = _BESIDE if beside else _what_would_tell(worst, autopsy)
    if (
        autopsy is None
        and evidence.circumstances is not None
        and not evidence.circumstances.updates
    ):
        text, code = _NO_UPDATE
    told = [sentence(autopsy), *autopsy.notes] if autopsy is not None else []
    said = [beside, *(s.detail for s in seen[:2]), *told]
    return Finding(
        cause=UNKNOWN,
        severity=worst.severity,
        confidence=CONFIDENCE,
        status="unknown",
        step=worst.step,
        where=Where(rank=worst.rank),
        evidence=[each for each in said if each][:MAX_EVIDENCE],
        remedy=Remedy(text=text, code=code),
    )


def _changed_beside(evidence: Evidence, worst: Symptom) -> str:
    """What says that a weight is finite and farther away than all updates can have moved it."""
    run = evidence.circumstances
    found = run.reach.beyond if run is not None else None
    if found is None or (worst.step is not None and worst.step > found.step + _NEAR):
        return ""
    return (
        f"{found.name} holds {number(found.size)} at step {found.step}; by their rates, all "
        f"updates so far can have led to {number(found.reach)} at most"
    )


def _what_would_tell(symptom: Symptom, autopsy: Autopsy | None) -> tuple[str, str]:
    if symptom.kind.startswith(_NON_FINITE):
        if autopsy is None:
            return _EXAMINE
        return _REPEAT if autopsy.verdict == NOT_REPRODUCED else _LOOK
    return _LOOK if symptom.kind in _SILENT else _JUMP
