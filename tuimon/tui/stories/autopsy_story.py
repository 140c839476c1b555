"""An autopsy told in lines: the operation, how the poison came and spread, and how sure that is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from tuimon.model.autopsy import (
    BACKWARD,
    LEAF,
    OPTIMIZER,
    Autopsy,
    ModuleState,
    OpSite,
    PoisonedLeaf,
    TensorNote,
)
from tuimon.model.text import plain
from tuimon.model.units import count, duration_s, number
from tuimon.model.verdict import samples_of
from tuimon.tui.stories.lines import Line, Part, heading, pair, place_lines, table

_MAX_SAMPLES = 16
_LEAST_CELLS = 12  # of a name in a table, where it has to give way


def operation_lines(autopsy: Autopsy) -> list[Line]:
    site = autopsy.first
    if site is None:
        return []
    met = autopsy.verdict == LEAF
    lines = heading("met by" if met else "operation")
    what: list[Part] = [(plain(site.op, 100), "strong"), (f"  {_phase(autopsy, site)}", "text")]
    if site.count > 1:
        what.append((f"  {count(site.count)} times", "dim"))
    lines.append(Line(tuple(what), "what"))
    if site.node:
        lines.append(pair("node", site.node))
    lines.append(pair("module", _module_of(site)))
    lines += place_lines(site.file, site.line, site.function, site.source)
    notes = [*site.inputs, *site.outputs]
    labels = [""] * len(notes)
    if site.outputs:
        labels[len(site.inputs)] = "gave"
    if site.inputs:
        labels[0] = "given"
    lines += table([tensor_row(each) for each in notes], labels=labels, right=frozenset({3}))
    return lines


def tensor_row(note: TensorNote) -> list[Part]:
    """Name, shape, dtype, range, then what is not finite and how many are 0."""
    shape = "×".join(map(str, note.shape)) or "scalar"
    span = "no finite value"
    if note.minimum is not None and note.maximum is not None:
        span = f"{number(note.minimum)} … {number(note.maximum)}"
    kinds = (("NaN", note.nan), ("+Inf", note.posinf), ("-Inf", note.neginf))
    bad = [f"{word} {count(found)}" for word, found in kinds if found]
    zeros = f"zeros {count(note.zeros)}" if note.zeros else ""
    of = f" of {count(note.numel)}" if bad and note.numel else ""
    last = ", ".join(bad) + of
    tail = "  ".join(part for part in (last, zeros) if part)
    return [
        (plain(note.name, 40), "text"),
        (shape, "text"),
        (plain(note.dtype.removeprefix("torch."), 20), "dim"),
        (span, "text" if note.minimum is not None else "bad"),
        (tail, "bad" if bad else "warn" if zeros else "dim"),
    ]


def leaf_lines(autopsy: Autopsy) -> list[Line]:
    if not autopsy.leaves:
        return []
    lines = heading("not finite before anything was computed")
    for leaf in autopsy.leaves:
        row = tensor_row(leaf.tensor)
        lines += table([[(_leaf_kind(leaf), "warn"), *row]], right=frozenset({4}))
        if leaf.samples:
            shown = samples_of(leaf, _MAX_SAMPLES).removeprefix("samples ").removeprefix("sample ")
            lines.append(pair("samples", shown, "warn"))
    return lines


def _leaf_kind(leaf: PoisonedLeaf) -> str:
    return plain(leaf.kind.replace("-", " "), 40)


def path_lines(autopsy: Autopsy, room: int | None = None) -> list[Line]:
    """The path as a table; in a room of so many cells long names give way, so that rows stay one
    line each.
    """
    if len(autopsy.path) < 2:
        return []
    lines = heading("path", "from the first bad operation to what was seen")
    rows: list[list[Part]] = []
    for index, site in enumerate(autopsy.path):
        at = "" if site.file is None else f"{os.path.basename(site.file)}:{site.line or '?'}"
        op = plain(site.op, 100) + (f" ×{site.count}" if site.count > 1 else "")
        first, last = index == 0, index == len(autopsy.path) - 1
        tone = "bad" if first or last else "text"
        phase = "" if site.phase == autopsy.path[0].phase else site.phase
        rows.append(
            [
                (str(index + 1), "dim"),
                (op, tone),
                (plain(_module_of(site), 80), "text"),
                (plain(at, 60), "key"),
                (plain(phase or _values(site.outputs), 40), "dim"),
            ]
        )
    if room is not None:
        _narrow(rows, room)
    return lines + table(rows, right=frozenset({0}))


def _narrow(rows: list[list[Part]], room: int) -> None:
    """Shorten the operations, then the modules, of rows that have more than so many cells."""

    def over() -> int:
        columns = zip(*rows, strict=True)
        widths = [max(len(words) for words, _ in column) for column in columns]
        return sum(widths) + 2 * sum(width > 0 for width in widths[:-1]) - room

    for row in rows if over() > 0 else ():
        row[1] = (row[1][0].removeprefix("aten::"), row[1][1])
    for column in (1, 2):
        if (much := over()) > 0:
            most = max(_LEAST_CELLS, max(len(row[column][0]) for row in rows) - much)
            for row in rows:
                row[column] = (_cut(row[column][0], most), row[column][1])


def _cut(words: str, most: int) -> str:
    """At most so many characters, both ends of what is longer."""
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return f"{words[:head]}…{words[len(words) + 1 + head - most :]}"


def _values(notes: Iterable[TensorNote]) -> str:
    found = list(notes)
    kinds = (
        ("NaN", any(note.nan for note in found)),
        ("+Inf", any(note.posinf for note in found)),
        ("-Inf", any(note.neginf for note in found)),
    )
    return " ".join(word for word, is_there in kinds if is_there)


def module_lines(modules: Sequence[ModuleState]) -> list[Line]:
    """The tree of what was bad when; a module below which nothing is bad is only counted."""
    bad = [each for each in modules if _is_bad(each)]
    if not bad:
        return []
    kept = {each.module for each in bad}
    kept |= {parent for each in bad for parent in _parents(each.module)}
    shown = [each for each in modules if each.module in kept]
    rows: list[list[Part]] = [
        [("module", "dim"), ("forward", "dim"), ("backward", "dim"), ("weights", "dim"), ("", "")]
    ]
    for each in shown:
        depth = 0 if not each.module else each.module.count(".") + 1
        label = "  " * depth + (each.module.rpartition(".")[2] or "the model")
        flags = [_flag(value) for value in (each.forward_bad, each.backward_bad)]
        name = (plain(label, 60), "strong" if _is_bad(each) else "text")
        kind = (plain(each.type_name, 40), "dim")
        rows.append([name, *flags, _flag(each.parameter_bad), kind])
    lines = heading("modules", "what was bad when") + table(rows)
    if hidden := len(modules) - len(shown):
        lines.append(Line(((f"and {hidden:,} with nothing bad in them", "dim"),)))
    return lines


def _is_bad(state: ModuleState) -> bool:
    return bool(state.forward_bad or state.backward_bad or state.parameter_bad)


def _parents(path: str) -> Iterable[str]:
    yield ""
    parts = path.split(".")
    for end in range(1, len(parts)):
        yield ".".join(parts[:end])


def _flag(bad: bool | None) -> Part:
    return ("–", "dim") if bad is None else ("bad", "bad") if bad else ("ok", "ok")


def examination_lines(autopsy: Autopsy) -> list[Line]:
    """How it was found out, and what that leaves open."""
    how = f"engine {autopsy.engine or 'none'}, {duration_s(autopsy.duration_s)}"
    lines = heading("examination", f"{how}, {autopsy.trigger or 'trigger unknown'}")
    if autopsy.recorded_loss is not None or autopsy.rerun_loss is not None:
        words = f"in the step {number(autopsy.recorded_loss)}, run again "
        lines.append(pair("loss", words + number(autopsy.rerun_loss)))
    if autopsy.loss_scale is not None:
        scale = number(autopsy.loss_scale, 6)
        if autopsy.bad_at_scale_1 is not None:
            scale += "; without it " + ("as bad" if autopsy.bad_at_scale_1 else "finite")
        lines.append(pair("scale", scale))
    if autopsy.constants:
        lines.append(pair("intended", f"infinities from {', '.join(autopsy.constants)}"))
    if autopsy.upstream:
        nodes = " ← ".join(name.removesuffix("Backward0") for name in autopsy.upstream[:8])
        lines.append(pair("from loss", nodes))
    lines += [Line(((plain(note), "dim"),), "note", indent=0) for note in autopsy.notes]
    return lines


def _phase(autopsy: Autopsy, site: OpSite) -> str:
    if site.phase == BACKWARD:
        return "in the backward pass"
    if site.phase == OPTIMIZER:
        return f"in the update by {plain(autopsy.optimizer or 'the optimizer', 60)}"
    return "in the forward pass"


def _module_of(site: OpSite) -> str:
    if not site.in_model:
        return "loss code" if site.phase != OPTIMIZER else "the optimizer"
    return site.module or "the model"
