"""What an autopsy found, in words for a person: one sentence, and the few lines of a verdict."""

from __future__ import annotations

import os

from tuimon.model.autopsy import (
    BACKWARD,
    COMPUTED,
    LEAF,
    NOT_REPRODUCED,
    OPERATION,
    OPTIMIZER,
    Autopsy,
    OpSite,
    PoisonedLeaf,
    TensorNote,
)
from tuimon.model.text import plain
from tuimon.model.units import number

MAX_SENTENCE = 400


def sentence(autopsy: Autopsy) -> str:
    """The verdict: what gave which value where."""
    return plain(f"step {autopsy.step:,}: {_finding(autopsy)}", MAX_SENTENCE)


def verdict_lines(autopsy: Autopsy) -> list[str]:
    """The verdict for a person at the end of a run: what and where, and what it was given."""
    lines = [sentence(autopsy)]
    first = autopsy.first
    if first is not None and first.inputs and autopsy.verdict == OPERATION:
        shown = "; ".join(operand(note) for note in first.inputs[:3])
        when = "in backward it" if first.phase == BACKWARD else "it"
        lines.append(plain(f"{when} was given {shown}", MAX_SENTENCE))
    return lines


def where(site: OpSite) -> str:
    """The place of an operation: module or loss code, then file, line and source."""
    parts = [_module(site)]
    if site.file is not None:
        line = "" if site.line is None else f":{site.line}"
        parts.append(f"{os.path.basename(site.file)}{line}")
    text = ", ".join(parts)
    return f"{text}  `{site.source}`" if site.source else text


def values(notes: list[TensorNote]) -> str:
    """The kinds of non-finite values in some tensors: "NaN and -Inf"; "" for none."""
    kinds = (
        ("NaN", sum(note.nan for note in notes)),
        ("+Inf", sum(note.posinf for note in notes)),
        ("-Inf", sum(note.neginf for note in notes)),
    )
    return " and ".join(name for name, count in kinds if count)


def samples_of(leaf: PoisonedLeaf, most: int) -> str:
    """The bad samples of a tensor: "sample 17", "samples 0, 1, 2, 3, … (9 of 32)", "all 32"."""
    bad = max(leaf.bad_samples, len(leaf.samples))
    batch = leaf.tensor.shape[0] if leaf.tensor.shape else 0
    if bad == batch > most:
        return f"all {bad:,} samples"
    shown = ", ".join(map(str, leaf.samples[:most]))
    if bad == 1:
        return f"sample {shown}"
    shown += ", …" if bad > most or bad > len(leaf.samples) else ""
    return f"samples {shown}" + (f" ({bad:,} of {batch:,})" if leaf.bad_samples else "")


def operand(note: TensorNote) -> str:
    """One input or output: name, shape, dtype and range."""
    name = f"{note.name} " if note.name else ""
    shape = "x".join(map(str, note.shape)) or "scalar"
    span = "no finite value"
    if note.minimum is not None and note.maximum is not None:
        span = f"{number(note.minimum)} … {number(note.maximum)}"
    bad = values([note])
    return f"{name}[{shape}] {note.dtype} {span}" + (f", {bad}" if bad else "")


def _finding(autopsy: Autopsy) -> str:
    first = autopsy.first
    if autopsy.verdict == LEAF and autopsy.leaves:
        leaf = autopsy.leaves[0]
        name = f" {leaf.tensor.name}" if leaf.tensor.name else ""
        held = values([leaf.tensor]) or "non-finite values"
        samples = f" in {samples_of(leaf, 4)}" if leaf.samples else ""
        met = f"; first met in {where(first)}" if first is not None else ""
        if leaf.kind == COMPUTED:
            return (
                f"the input{name} was computed outside of the model and held {held}{samples}{met}"
            )
        return f"the {leaf.kind}{name} held {held}{samples} before anything was computed{met}"
    if autopsy.verdict == OPERATION and first is not None:
        gave = values(first.outputs) or "a non-finite value"
        return f"{first.op} gave {gave} in {_phase(autopsy, first)}{where(first)}"
    if autopsy.verdict == NOT_REPRODUCED:
        return "run again, the step showed nothing that is not finite"
    return "no operation could be named"


def _phase(autopsy: Autopsy, site: OpSite) -> str:
    if site.phase == BACKWARD:
        return f"backward ({site.node}) of " if site.node else "backward of "
    if site.phase == OPTIMIZER:
        return f"the update by {autopsy.optimizer}, " if autopsy.optimizer else "the update, "
    return ""


def _module(site: OpSite) -> str:
    if not site.in_model:
        return "loss code" if site.phase != OPTIMIZER else "the optimizer"
    return site.module or "the model"
