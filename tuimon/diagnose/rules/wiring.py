"""Causes in how gradients, parameters and optimizer are connected, by what a loop does."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.observing import is_stalled, observed
from tuimon.model.loop import LoopCalls, Reach

OFTEN = 5  # updates: fewer may be a phase, or one step that was left out on purpose
MOST = 0.5  # of the updates that were looked at
NEARLY_ALL = 0.8
STARVED = 0.25  # of the trained elements: an unused head is smaller
LONG = 50  # updates without any gradient
FROZEN = 0.9  # of the elements that an optimizer holds


class ZeroGrad:
    """Gradients that pile up, or are gone before they are used."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        calls = run.loop.calls if run else None
        if calls is None:
            return
        for name, share, confidence, words in _CLEARINGS:
            count = getattr(calls, name)
            if count < OFTEN or count < share * calls.looked:
                continue
            step = calls.first.get(name, 0)
            detail = f"{words} in {count:,} of {calls.looked:,} updates, first at step {step}"
            reasons = [f"for example {', '.join(calls.names)}"] if name == "uncleared" else []
            yield from_symptom("zero-grad", observed(detail, evidence, step), confidence, reasons)


_CLEARINGS = (
    ("uncleared", MOST, 0.95, "gradients of earlier updates were still there and added up"),
    ("emptied", MOST, 0.95, "gradients were there after backward and gone before the update"),
    (
        "discarded",
        NEARLY_ALL,
        0.8,
        "of several backward calls only the last one's gradient was left for the update",
    ),
)


class Unreached:
    """Parameters that training cannot move, and parameters that nobody updates."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        found = next(_disconnected(run, evidence), None)
        if found is not None:
            detail, confidence, param = found
            symptom = observed(detail, evidence)
            yield from_symptom("params-stuck", symptom, confidence, _warned(run), param=param)


_Found = tuple[str, float, str | None]


def _disconnected(run: Circumstances, evidence: Evidence) -> Iterator[_Found]:
    """(what is seen, confidence, parameter), the strongest first."""
    loop = run.loop
    reach = max(loop.reaches, key=_strength, default=None)
    yield from _none_reached(loop.calls, reach)
    if reach is not None and reach.is_whole:
        yield from _replaced(reach)
    share = loop.starving
    names = [name for name in loop.starving_names() if name not in loop.moving]
    if share >= STARVED and loop.looked >= LONG and names and not loop.moving:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        detail = (
            f"{100 * share:.0f} % of the trained elements never had a gradient in "
            f"{loop.looked:,} updates: {', '.join(names[:3])}{more}"
        )
        certain = is_stalled(evidence) or "checkpoint" in loop.warned
        yield detail, 0.94 if certain else 0.82, names[0]
    if reach is not None and is_stalled(evidence):
        yield from _left_out(reach)


def _none_reached(calls: LoopCalls | None, reach: Reach | None) -> Iterator[_Found]:
    if calls is None or calls.unreached < OFTEN or calls.unreached < MOST * calls.looked:
        return
    detail = (
        f"backward ran before {calls.unreached:,} updates and left no gradient in any parameter "
        f"of the optimizer"
    )
    if reach is not None and reach.unowned:
        where = f": {', '.join(reach.unowned_names)}" if reach.unowned_names else ""
        detail += f"; the loss reaches {reach.unowned} parameters that no optimizer holds{where}"
    yield detail, 0.96, None


def _replaced(reach: Reach) -> Iterator[_Found]:
    if reach.hidden:
        detail = (
            f"the loss reaches {', '.join(reach.hidden)}, which lie in a plain list or dict of "
            f"the model: it does not know them as its own, and no optimizer holds them"
        )
        yield detail, 0.93, reach.hidden[0]
    if reach.orphans and reach.unowned:
        names = reach.late or reach.unowned_names
        where = f" ({', '.join(names)})" if names else ""
        detail = (
            f"the optimizer holds {reach.orphans} parameters of no model, and the loss reaches "
            f"{reach.unowned} trainable ones{where} that no optimizer holds"
        )
        yield detail, 0.94, names[0] if names else None
    if reach.late:
        detail = (
            f"{', '.join(reach.late)} joined the model after the optimizer had been made, and no "
            f"optimizer holds them"
        )
        yield detail, 0.9, reach.late[0]


def _left_out(reach: Reach) -> Iterator[_Found]:
    """Where nothing is learned: what is trained is only a small part."""
    if reach.unowned_names and reach.unowned_elements > reach.owned_elements and reach.is_whole:
        detail = (
            f"no optimizer holds {reach.unowned} of the trainable parameters that the loss "
            f"reaches: {', '.join(reach.unowned_names)}"
        )
        yield detail, 0.8, reach.unowned_names[0]
    whole = reach.frozen_elements + reach.owned_elements
    if reach.frozen_elements >= FROZEN * whole > 0:
        share = 100 * reach.frozen_elements / whole
        detail = f"{share:.1f} % of what the optimizer holds has requires_grad=False"
        yield detail, 0.8, None


def _strength(reach: Reach) -> tuple[int, int, int]:
    return len(reach.hidden) + len(reach.late), reach.orphans, reach.unowned


def _warned(run: Circumstances) -> list[str]:
    text = run.loop.warned.get("checkpoint")
    return [f"PyTorch warned: {text}"] if text else []
