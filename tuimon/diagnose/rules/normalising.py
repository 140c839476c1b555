"""Causes in the running statistics of normalisation layers: how they are made and when used."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding, Remedy
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.observing import is_stalled, observed
from tuimon.model.loop import LoopCalls, NormLayer
from tuimon.model.units import number

OFTEN = 10  # updates
SHARE = 0.2  # of the updates
ROWS = 2  # evaluations: a single one may be meant to estimate statistics
# torch weighs the new batch with `momentum`, others the old statistics: 0.9 and 0.99 mean the
# opposite there.
HASTY = 0.9
UNSETTLED = 0.5  # weight of the initial values in the statistics
LONG = 100  # forwards
PAIR = 2  # samples of a batch that is too small to tell a spread
FAR_OFF = 10.0  # size of outputs that should have size 1; a small one may be a weight near 0

_OF_FEATURES = ("LayerNorm", "RMSNorm")
_WITHOUT = Remedy(
    text="Normalise more than one number: remove the normalisation behind a layer of one output, "
    "or put it before that layer.",
    code="head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))",
)

_Found = tuple[str, float, str | None]


class RunningStatistics:
    """Statistics that are not those of the data, by mode, momentum and number of forwards."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None or run.loop.calls is None or not run.loop.norms:
            return
        found = next(_unsound(run, run.loop.calls, evidence), None)
        if found is not None:
            detail, confidence, module = found
            step = run.loop.calls.first_eval_update or 0
            symptom = observed(detail, evidence, step)
            yield from_symptom("norm-state", symptom, confidence, [], module=module)


class Lone:
    """A normalisation over a single number: what it gives is its bias, whatever goes in."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None or run.table is None or not is_stalled(evidence):
            return
        shapes = dict(zip(run.table.names, run.table.shapes, strict=False))
        for name, output in run.motion.outputs.items():
            weight = shapes.get(f"{name}.weight" if name else "weight")
            if output.kind in _OF_FEATURES and weight == [1]:
                detail = (
                    f"{name or 'the model'} ({output.kind}) normalises one number by itself: "
                    f"nothing of its value, and no gradient, passes through"
                )
                symptom = observed(detail, evidence)
                yield from_symptom("norm-state", symptom, 0.93, [], module=name, remedy=_WITHOUT)
                return


def _unsound(run: Circumstances, calls: LoopCalls, evidence: Evidence) -> Iterator[_Found]:
    norms = list(run.loop.norms.values())
    yield from _modes(norms, calls)
    for norm in norms:
        yield from _frozen(norm, run, calls)
    if calls.proper_evals:
        for norm in norms:
            yield from _momentum(norm, calls)
    sizes = [each.shape[0] for each in run.inputs if each.shape]
    trains = next((norm for norm in norms if norm.training), None)
    if sizes and max(sizes) <= PAIR and trains is not None and is_stalled(evidence):
        detail = (
            f"{trains.name} ({trains.kind}) normalises by the spread of {max(sizes)} samples, "
            f"which tells their order and nothing else"
        )
        yield detail, 0.85, trains.name


def _modes(norms: list[NormLayer], calls: LoopCalls) -> Iterator[_Found]:
    first = norms[0]
    total = calls.eval_updates + calls.train_updates
    if calls.eval_updates >= OFTEN and calls.eval_updates >= SHARE * total:
        if calls.train_updates and calls.first_eval_update:
            detail = (
                f"the model was in evaluation mode in {calls.eval_updates:,} updates, from step "
                f"{calls.first_eval_update} on: train() was not called again after an evaluation"
            )
            yield detail, 0.94, first.name
        elif not calls.train_updates and all(norm.is_initial for norm in norms):
            detail = (
                f"all {calls.eval_updates:,} updates were made in evaluation mode, and the "
                f"statistics of {first.name} are still 0 and 1: it normalises nothing"
            )
            yield detail, 0.9, first.name
    trains = next((norm for norm in norms if norm.training), None)
    if calls.train_evals >= ROWS and not calls.proper_evals and trains is not None:
        detail = (
            f"{calls.train_evals} evaluations without a graph ran in training mode and none in "
            f"evaluation mode: {trains.name} normalised them by their own batch, and they "
            f"entered its statistics"
        )
        yield detail, 0.8, trains.name


def _frozen(norm: NormLayer, run: Circumstances, calls: LoopCalls) -> Iterator[_Found]:
    if norm.training or calls.train_updates < OFTEN:
        return
    if norm.is_initial:
        detail = (
            f"{norm.name} ({norm.kind}) is frozen in a model that trains, and its statistics are "
            f"still 0 and 1: it normalises nothing"
        )
        yield detail, 0.9, norm.name
        return
    output = run.motion.outputs.get(norm.name)
    if output is not None and output.rms is not None and output.rms > FAR_OFF:
        detail = (
            f"{norm.name} ({norm.kind}) is frozen with statistics of other data: what it gives "
            f"has a size of {number(output.rms)} where it should be about 1"
        )
        yield detail, 0.88, norm.name


def _momentum(norm: NormLayer, calls: LoopCalls) -> Iterator[_Found]:
    if norm.momentum is None or not norm.training:
        return
    if norm.momentum == 0 and norm.is_initial and (norm.tracked or 0) >= OFTEN:
        detail = (
            f"{norm.name} ({norm.kind}) has momentum 0: its statistics stay at 0 and 1 after "
            f"{norm.tracked:,} batches, and evaluation uses them"
        )
        yield detail, 0.93, norm.name
    elif norm.momentum >= HASTY:
        detail = (
            f"{norm.name} ({norm.kind}) has momentum {norm.momentum:g}: {100 * norm.momentum:.0f} "
            f"% of its statistics are those of the newest batch alone"
        )
        yield detail, 0.85, norm.name
    # The newest look may be some updates old: a layer that is used at each goes on with them.
    tracked = max(norm.tracked or 0, calls.train_updates)
    if 0 < norm.momentum < HASTY and (norm.tracked or 0) >= OFTEN and tracked >= LONG:
        left = (1 - norm.momentum) ** tracked
        if left > UNSETTLED:
            detail = (
                f"{norm.name} ({norm.kind}) has momentum {norm.momentum:g}: after "
                f"{tracked:,} batches {100 * left:.0f} % of its statistics are still the "
                f"initial 0 and 1, and evaluation uses them"
            )
            yield detail, 0.85, norm.name
