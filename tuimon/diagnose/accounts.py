"""The AMP ledger as the section of the report; its four first fields are the schema's."""

from __future__ import annotations

from typing import Any

from tuimon.diagnose.amp import AmpLedger
from tuimon.model.amp import WRONG_ORDER, AmpCalls, AmpSkip, Headroom

MAX_SKIPS_REPORTED = 64


def amp_section(ledger: AmpLedger) -> dict[str, Any]:
    """What the GradScaler did over the run."""
    skips = ledger.skips
    half = MAX_SKIPS_REPORTED // 2
    shown = skips if len(skips) <= MAX_SKIPS_REPORTED else [*skips[:half], *skips[-half:]]
    return {
        "scale_first": ledger.scale_first,
        "scale_last": ledger.scale_last,
        "skipped": ledger.skipped,
        "verdict": ledger.verdict,
        "why": ledger.why,
        "attempted": ledger.attempted,
        "scale_min": ledger.scale_min,
        "scale_max": ledger.scale_max,
        "skips": [_skip(skip) for skip in shown],
        "headroom": {
            "gradient": _headroom(ledger.gradient_headroom),
            "activation": _headroom(ledger.activation_headroom),
        },
        "calls": _calls(ledger.calls) if ledger.calls is not None else None,
    }


def _skip(skip: AmpSkip) -> dict[str, Any]:
    return {
        "step": skip.step,
        "optimizer": skip.optimizer,
        "scale": skip.scale,
        "tensor": skip.name or None,
        "nan": skip.nan,
        "posinf": skip.posinf,
        "neginf": skip.neginf,
        "numel": skip.numel or None,
        "tensors": skip.tensors,
        "order": skip.order,
        "loss_is_finite": skip.loss_is_finite,
    }


def _headroom(headroom: Headroom | None) -> dict[str, Any] | None:
    if headroom is None:
        return None
    return {
        "name": headroom.name,
        "absmax": headroom.absmax,
        "factor": headroom.factor,
        "step": headroom.step,
    }


def _calls(calls: AmpCalls) -> dict[str, Any]:
    counts = {
        name: value
        for name in calls.__struct_fields__
        if isinstance(value := getattr(calls, name), int | float)
    }
    wrong = {name: calls.first.get(name) for name in WRONG_ORDER if getattr(calls, name)}
    return {**counts, "wrong_order": wrong}
