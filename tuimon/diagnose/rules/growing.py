"""Causes of a loss that grows without bound although no single operation is at fault."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.motion import OVERFLOWN
from tuimon.diagnose.rules.concluding import Verdict, from_symptom, from_verdict
from tuimon.diagnose.rules.scales import oversized
from tuimon.model.autopsy import OPERATION, OPTIMIZER, Autopsy
from tuimon.model.records import Symptom
from tuimon.model.units import number

# One update of a plain net multiplies the gradient by tens; a product over time or depth by more.
LEAP = 1e3
RECURRENT = 8  # calls of one module within a forward, or uses of one weight
UNROLLED, REPEATED = 200, 30  # nodes of a graph, and how many to one parameter: layers make ten
DEEP = 16  # weights in a row
STEEP = 1e3  # a gradient norm at the first update that no sane net of inputs of order 1 has
ENORMOUS = 1e5  # likewise, whatever the loss
_RECURRENT_KINDS = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
_NORMALISING = ("NativeLayerNorm", "NativeBatchNorm", "NativeGroupNorm", "CudnnBatchNorm")
# What only overflows where its operands have grown; a fault of its own needs another look.
_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "addmv", "mv", "convolution", "linear", "matmul")
_SIZES = (
    *("mse_loss", "pow", "mul", "add", "sub", "sum", "mean", "square", "norm"),
    *("linalg_vector_norm", "native_", "var", "std", "cumsum", "dot"),
)
_NON_FINITE = ("non-finite-loss", "non-finite-gradient", "non-finite-parameter")
RECOVERED, NEAR, FAR = 0.5, 3, 50.0  # of the first loss; updates; times the level
RINGS = 50  # updates over which an instability shows itself
HIGHER, RISING = 10.0, 1.2  # times the first rate; times that of `RINGS` updates before
ABSURD, SOON = 1e6, 3  # a first loss; updates after it
GROWN = 1e9  # magnitude of an operand that has grown, in single precision


class Growing:
    """The scale of data, loss or initial weights, a product over time, or the learning rate."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None or run.reach.beyond is not None:  # what grew was not grown by updates
            return
        overflow = _overflow(evidence)
        symptom = _growth(evidence) or (overflow[0] if overflow else _sudden(evidence, run))
        if symptom is None:
            return
        at_once = _at_once(evidence, overflow)
        outlier = _came_with_data(evidence, run, symptom)
        if outlier is not None:
            yield from_symptom("data-outlier", symptom, 0.9, [outlier])
        verdicts = sorted(_verdicts(run, symptom, at_once=at_once), key=_certainty, reverse=True)
        for verdict in verdicts:
            yield from_verdict(verdict, symptom)
        if not at_once:
            by_data = bool(outlier) or _follows_an_outlier(run, symptom)
            explained = by_data or (bool(verdicts) and verdicts[0].confidence >= 0.85)
            yield from _rate(run, symptom, 0.6 if explained else 0.85)


def _certainty(verdict: Verdict) -> float:
    return verdict.confidence


def _verdicts(run: Circumstances, symptom: Symptom, *, at_once: bool) -> Iterator[Verdict]:
    found = list(oversized(run, symptom.step))
    if at_once and not any(v.cause in ("data-scale", "bad-init", "uninit-weights") for v in found):
        reason = "the first forward overflows although data and parameters are finite"
        found.append(Verdict("bad-init", 0.8, reason))
    yield from found
    recurrent, leapt = recurrence(run), _leap(run)
    steep = _steep(run)
    if recurrent and (leapt >= LEAP or steep) and not run.motion.is_clipped:
        grew = f"the gradient norm grew {number(leapt)} times within one update"
        at_first = f"the gradient norm is {number(steep)} before the first update"
        reasons = [grew if leapt >= LEAP else at_first, recurrent]
        yield Verdict("grad-explode", 0.9, "; ".join([*reasons, *_largest(run)]))
    elif depth := _depth(run):
        yield Verdict("grad-explode", 0.87, depth)
    functions = run.motion.graph.functions if run.motion.graph is not None else []
    if functions:
        reason = f"{functions[0]} has a hand-written backward, whose factor nothing checks"
        yield Verdict("custom-backward", 0.5, reason)


def _growth(evidence: Evidence) -> Symptom | None:
    """The worst explosion that was seen."""
    explosions = [s for s in evidence.symptoms if s.kind == "explosion" and s.severity != "info"]
    critical = [s for s in explosions if s.severity == "critical"]
    return next(iter(critical or explosions), None)


def _overflow(evidence: Evidence) -> tuple[Symptom, Autopsy] | None:
    """Finite operands that have grown so far that a harmless operation overflowed."""
    for autopsy in evidence.autopsies:
        if not _has_overflowed(autopsy):
            continue
        for symptom in evidence.symptoms:
            near = symptom.step is not None and abs(symptom.step - autopsy.step) <= 1
            if symptom.kind in _NON_FINITE and near and symptom.severity != "info":
                return symptom, autopsy
    return None


def _came_with_data(evidence: Evidence, run: Circumstances, symptom: Symptom) -> str | None:
    """A loss that jumped from its level at once, between calm updates, and came back."""
    step, start, level = symptom.step, run.motion.start, run.motion.level
    if step is None or start is None or level is None or level > RECOVERED * start:
        return None
    if any(abs(at - step) <= NEAR for at, _, _ in run.motion.raises) or _climbs(run, step):
        return None
    ended = _ends_soon(evidence, step)
    if ended and _rang_before(evidence, step):
        return None
    for spike in evidence.symptoms:
        near = spike.kind == "spike" and spike.step is not None and abs(spike.step - step) <= 1
        if near and "lead_steps" not in spike.figures and spike.figures.get("times", 0) >= FAR:
            came = f"its level was {number(level)}" if ended else f"came back to {number(level)}"
            return (
                f"the loss rose {number(spike.figures['times'])} times within one update, from "
                f"calm gradients, and {came}: a step that is too long builds up first"
            )
    return None


def _climbs(run: Circumstances, step: int) -> bool:
    """Whether the rate is `HIGHER` than it began, and has not stopped rising: a step too long."""
    rates = [rate for at, rate in run.motion.rates.points if at <= step]
    lately = [rate for at, rate in run.motion.rates.points if step - RINGS <= at <= step]
    if not lately or not rates[0] or rates[-1] < max(rates):
        return False
    return rates[-1] >= HIGHER * rates[0] and rates[-1] >= RISING * lately[0]


def _follows_an_outlier(run: Circumstances, symptom: Symptom) -> bool:
    """Whether a batch that reaches far beyond all others came at most `NEAR` updates before."""
    at = symptom.step
    return at is not None and any(-1 <= at - o.step <= NEAR for o in run.loop.feed.outliers)


def _ends_soon(evidence: Evidence, step: int) -> bool:
    """Whether what followed a jump was no return, but the end."""
    bad = [s for s in evidence.symptoms if s.kind in _NON_FINITE and s.severity == "critical"]
    return any(s.step is not None and 0 <= s.step - step <= RINGS for s in bad)


def _rang_before(evidence: Evidence, step: int) -> bool:
    """Whether the loss had jumped and come back shortly before: an instability announces itself."""
    spikes = [s.step for s in evidence.symptoms if s.kind == "spike" and s.step is not None]
    return any(1 < step - at <= RINGS for at in spikes)


def _sudden(evidence: Evidence, run: Circumstances) -> Symptom | None:
    """What ended in NaN within some updates of a steep beginning, where nothing was examined."""
    if evidence.autopsies or not (_steep(run) or (run.motion.start or 0.0) >= ABSURD):
        return None
    bad = [s for s in evidence.symptoms if s.kind in _NON_FINITE and s.severity == "critical"]
    return next((s for s in bad if s.step is not None and s.step <= SOON), None)


def _at_once(evidence: Evidence, overflow: tuple[Symptom, Autopsy] | None) -> bool:
    """Whether values ceased to be finite before any update: no learning rate is to blame then."""
    if overflow is not None:
        return overflow[1].step == 0
    return any(s.kind in _NON_FINITE and s.step == 0 for s in evidence.symptoms)


def _has_overflowed(autopsy: Autopsy) -> bool:
    site = autopsy.first
    if site is None or autopsy.verdict != OPERATION or site.phase == OPTIMIZER:
        return False
    if any(note.dtype == "float16" for note in (*site.inputs, *site.outputs)):
        return False
    if any(note.posinf or note.neginf for note in site.inputs):
        return False
    op = site.op.rpartition("::")[2].removeprefix("_foreach_").strip("_")
    sizes = [max(abs(n.minimum or 0.0), abs(n.maximum or 0.0)) for n in site.inputs]
    grown = max(sizes, default=0.0) >= GROWN
    in_product = op in _PRODUCTS and (grown or (autopsy.step <= 1 and site.in_model))
    return in_product or (grown and op.startswith(_SIZES))


def _steep(run: Circumstances) -> float:
    """The gradient norm of the first update, where it is out of proportion to the loss; else 0."""
    first = next((m for m in run.motion.first if m.grad_norm is not None), None)
    if first is None or first.grad_norm is None or first.loss is None:
        return 0.0
    bound = min(ENORMOUS, STEEP * max(1.0, abs(first.loss)))
    return first.grad_norm if first.grad_norm >= bound else 0.0


def _depth(run: Circumstances) -> str:
    """Many layers in a row without normalisation, and a gradient that is steep from the start."""
    motion = run.motion
    kinds = motion.graph.kinds if motion.graph is not None else {}
    norm = motion.first[0].grad_norm if motion.first else 0.0
    norm = math.inf if norm is None else norm
    if norm < STEEP or len(motion.begun) < DEEP or any(kind in kinds for kind in _NORMALISING):
        return ""
    return (
        f"the gradient norm is {number(norm)} before the first update: "
        f"{len(motion.begun)} weights multiply it in a row, and nothing normalises between them"
    )


def _leap(run: Circumstances) -> float:
    """The largest factor between two gradient norms in a row."""
    found = 1.0
    for row in (run.motion.first, run.motion.newest):
        for now, following in pairwise(row):
            if now.grad_norm and following.grad_norm:
                found = max(found, following.grad_norm / now.grad_norm)
            elif now.grad_norm and now.loss is not None and following.loss is None:
                # From a finite loss to none within one update: beyond what can be measured.
                found = max(found, OVERFLOWN / now.grad_norm)
    return found


def recurrence(run: Circumstances) -> str:
    """Why backward multiplies the same Jacobian again and again; "" where it does not."""
    for kind in run.kinds:
        if kind in _RECURRENT_KINDS:
            return f"the model is recurrent ({kind}): backward multiplies one Jacobian a time step"
    calls, module = run.most_calls
    if calls >= RECURRENT:
        return f"{module or 'the root'} runs {calls} times within one forward"
    graph = run.motion.graph
    matrices = {weight.name for weight in run.motion.begun}
    used = [(n, c) for n, c in (graph.uses if graph else []) if c >= RECURRENT and n in matrices]
    if used:
        return f"{used[0][0]} is used {used[0][1]} times within one forward"
    if graph is not None and graph.is_whole:
        params = max(1, len(run.motion.begun) + len(run.motion.tables))
        if graph.nodes >= UNROLLED and graph.nodes >= REPEATED * params:
            return (
                f"the loss's graph has {graph.nodes:,} nodes for {params} parameters: the same "
                f"computation follows itself, and backward multiplies its Jacobian as often"
            )
    names = run.table.names if run.table else []
    found = next((name for name in names if name.rpartition(".")[2].startswith("weight_hh")), "")
    return f"{found} is applied once a time step" if found else ""


def _largest(run: Circumstances) -> list[str]:
    shares = run.shares()
    return [f"{shares[0][1]} has {100 * shares[0][0]:.0f} % of its square"] if shares else []


def _rate(run: Circumstances, symptom: Symptom, confidence: float) -> Iterator[Finding]:
    norms = " → ".join(number(norm, 2) for norm in list(run.grad_norms)[-5:])
    reasons = [f"the learning rate is {number(run.top_rate)}; gradient norms: {norms}"]
    leapt = _leap(run)
    if leapt > 1:
        reasons.append(f"up to {number(leapt)} times more from one update to the next")
    if run.motion.overshoot is not None and not run.motion.settings.get("eps"):
        promised, rise = run.motion.overshoot
        reasons.append(
            f"by its gradient an update would have lowered the loss by {number(promised)}; it "
            f"raised it by {number(rise)}: the step is longer than the curvature allows"
        )
    ratio = run.motion.early_ratio
    if ratio is not None:
        reasons.append(f"an update moved the weights by {number(ratio)} of their length")
    yield from_symptom("lr-too-high", symptom, confidence, reasons)
