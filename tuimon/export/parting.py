"""Where two runs part: the first step, the first layer, and what they were begun with.

Both recordings are read side by side, one step at a time, in bounded memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from msgspec import structs

from tuimon.export.postmortem import PostMortem
from tuimon.export.story import Section, Table, has_ranks
from tuimon.feed.recording import Recording
from tuimon.model.commands import title_words
from tuimon.model.records import DeviceStats, LayerTable, Step, loss_of
from tuimon.model.units import count, json_number, number
from tuimon.view.frame import Floats

SCHEMA = "tuimon.parting/1"
PRIMARY = 0
CLEARLY_FRAC = 0.01  # a difference that is more than rounding
_MOST_LAYERS = 20
_HARMLESS = frozenset(("Pause", "Resume", "StepOnce", "Dump", "Inspect", "SaveCheckpoint"))
_RESULTS = ("loss", "grad_norm")
_FIGURES = (*_RESULTS, "loss_scale")
_SETTINGS = ("max_norm", "clip")
LATE_STEPS = 256  # updates that wait for what a device says of them

Value = float | str | None


@dataclass
class Difference:
    """One step at which both runs were seen, and do not agree.

    Attributes:
        figures: (name, of the first, of the second) of what differs.
        layers: (name, norm of the first, of the second) of those that differ, in the order of
            the model.
        layers_differ: how many do; None where norms cannot be compared.
    """

    step: int
    figures: list[tuple[str, Value, Value]] = field(default_factory=list)
    layers: list[tuple[str, float, float]] = field(default_factory=list)
    layers_differ: int | None = None

    @property
    def settings(self) -> list[tuple[str, Value, Value]]:
        """Of the figures those that somebody has chosen: learning rates and clipping."""
        return [each for each in self.figures if each[0] not in _FIGURES]

    @property
    def has_results(self) -> bool:
        """Whether anything differs that the training has come to."""
        return bool(self.layers_differ) or len(self.settings) < len(self.figures)


@dataclass
class Parting:
    """What two runs have in common, and from where on they have not.

    Attributes:
        compared: steps that both have recorded.
        same_to: the last step up to which everything was equal; None where there is none.
        first: the first step with any difference, bit for bit; None where there is none.
        settings: the first at which learning rates or clipping differ.
        results: the first at which loss, norms or loss scale differ.
        layer: the first at which the norm of a layer differs.
        clearly: the first step at which loss or norm differ by more than `CLEARLY_FRAC`, or one
            of them is not finite.
        ranks: which rank of the runs is compared, as words; "" where none has several.
        only: parameters that only one of the models has, or that have another shape.
        reached: (name of the run, step, words) of what was asked of one of them up to the first
            difference and took effect.
        begun: (what, first, second) of how they were started, where that differs.
    """

    names: tuple[str, str]
    compared: int = 0
    same_to: int | None = None
    first: Difference | None = None
    settings: Difference | None = None
    results: Difference | None = None
    layer: Difference | None = None
    clearly: Difference | None = None
    ranks: str = ""
    only: list[str] = field(default_factory=list)
    reached: list[tuple[str, int, str]] = field(default_factory=list)
    begun: list[tuple[str, str, str]] = field(default_factory=list)

    def sections(self) -> list[Section]:
        """As parts of a report."""
        text = [self._summary(), *self._where(), *([self.ranks] if self.ranks else [])]
        if self.only:
            shown = ", ".join(self.only[:_MOST_LAYERS])
            text.append(f"Parameters that are not the same in both models: {shown}.")
        text += [f"{who}: {words} at step {step:,}." for who, step, words in self.reached]
        found = [Section("Where they part", text)]
        told: list[Difference] = []
        for title, each in (
            ("The first difference", self.first),
            ("Settings", self.settings),
            ("Loss and norms", self.results),
            ("Layers", self.layer),
            ("More than 1 %", self.clearly),
        ):
            if each is not None and each not in told:
                told.append(each)
                found.append(self._told(title, each))
        if self.begun:
            head = ("what", *self.names)
            found.append(Section("Begun differently", table=Table(head, self.begun)))
        return found

    def note(self, found: Difference) -> None:
        """Keep it as the first of each kind that it is of."""
        self.first = self.first or found
        if found.settings:
            self.settings = self.settings or found
        if found.has_results:
            self.results = self.results or found
        if found.layers:
            self.layer = self.layer or found
        if _is_clear(found):
            self.clearly = self.clearly or found

    def document(self) -> dict[str, Any]:
        """As plain data for strict JSON."""
        return {
            "schema": SCHEMA,
            "names": list(self.names),
            "compared": self.compared,
            "same_to": self.same_to,
            "first": _entry(self.first),
            "settings": _entry(self.settings),
            "results": _entry(self.results),
            "layer": _entry(self.layer),
            "clearly": _entry(self.clearly),
            "only": self.only,
            "begun": [list(each) for each in self.begun],
        }

    def _summary(self) -> str:
        if not self.compared:
            return "No step was recorded of both runs: there is nothing to compare."
        if self.first is None:
            return f"All {count(self.compared)} steps that both have recorded are the same."
        step = f"They part at step {self.first.step:,}"
        before = (
            f"; up to step {self.same_to:,} every number that was recorded is the same."
            if self.same_to is not None
            else ": no recorded step before it is the same."
        )
        return step + before

    def _where(self) -> list[str]:
        """The first step of each kind of difference, a sentence each."""
        if self.first is None:
            return []
        if self.settings is None:
            told = ["Learning rates and clipping are the same wherever both were recorded."]
        else:
            names = ", ".join(name for name, _, _ in self.settings.settings)
            told = [f"Settings differ first at step {self.settings.step:,}: {names}."]
        if self.results is None:
            return [*told, "Loss and norms are the same at every step."]
        told.append(f"Loss or norms differ first at step {self.results.step:,}.")
        if self.layer is not None:
            name = self.layer.layers[0][0]
            told.append(f"The first layer to differ is {name}, at step {self.layer.step:,}.")
        clearly = "never" if self.clearly is None else f"first at step {self.clearly.step:,}"
        return [*told, f"Loss or norm differ by more than 1 % {clearly}."]

    def _told(self, title: str, each: Difference) -> Section:
        rows = [(name, _words(a), _words(b)) for name, a, b in each.figures]
        rows += [(f"grad norm of {name}", number(a), number(b)) for name, a, b in each.layers]
        text = []
        if each.layers_differ is not None and each.layers_differ > len(each.layers):
            text.append(f"{count(each.layers_differ)} layers differ; the first of them are here.")
        return Section(f"{title}: step {each.step:,}", text, table=Table(("", *self.names), rows))


def compare(first: PostMortem, second: PostMortem) -> Parting:
    """Read both recordings and find where they part."""
    parting = Parting((first.title, second.title), begun=_begun(first, second))
    if any(has_ranks(each.document) for each in (first, second)):
        ranks = [str(each.recording.rank or 0) for each in (first, second)]
        parting.ranks = f"Of several ranks one is compared: {' with '.join(ranks)}."
    a, b = _Updates(first.recording), _Updates(second.recording)
    for one, other in _together(iter(a), iter(b)):
        parting.compared += 1
        if parting.settings and parting.layer and parting.clearly:
            continue
        found = _difference(one, other, a.table, b.table)
        if found is None:
            parting.same_to = one.step if parting.first is None else parting.same_to
            continue
        parting.note(found)
    parting.only = _only(a.table, b.table)
    if parting.first is not None:
        parting.reached = [
            told for each in (first, second) for told in _reached(each, parting.first.step)
        ]
    return parting


def _reached(run: PostMortem, until: int) -> list[tuple[str, int, str]]:
    """Interventions that took effect by a step, and may be why it is another one."""
    return [
        (run.title, int(each["step"]), str(each.get("words") or title_words(str(each["command"]))))
        for each in run.document.get("interventions") or []
        if each.get("state") == "applied" and each.get("step") is not None
        if each["step"] <= until and each["command"] not in _HARMLESS
    ]


class _Updates:
    """Steps of the primary optimizer with all that is known of them, and the newest layer table."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.table: LayerTable | None = None

    def __iter__(self) -> Iterator[Step]:
        waiting: deque[Step] = deque()
        for _, record in self._recording.records():
            if isinstance(record, LayerTable):
                self.table = record
            elif isinstance(record, Step) and record.optimizer == PRIMARY:
                waiting.append(record)
            elif isinstance(record, DeviceStats) and record.optimizer == PRIMARY:
                _join(record, waiting)
            while waiting and (not waiting[0].late or len(waiting) > LATE_STEPS):
                yield waiting.popleft()
        yield from waiting


def _join(told: DeviceStats, waiting: deque[Step]) -> None:
    """Fill in what a device has measured of an update that waits for it."""
    for place, step in enumerate(waiting):
        if step.step == told.step:
            known = {name: getattr(told, name) for name in (*_FIGURES, "norms", "flags")}
            known["loss"] = loss_of(told)
            there = {name: value for name, value in known.items() if value not in (None, b"")}
            waiting[place] = structs.replace(step, late=False, **there)


def _together(a: Iterator[Step], b: Iterator[Step]) -> Iterator[tuple[Step, Step]]:
    """Pairs of the same step."""
    one, other = next(a, None), next(b, None)
    while one is not None and other is not None:
        if one.step == other.step:
            yield one, other
        behind = one.step - other.step
        if behind <= 0:
            one = next(a, None)
        if behind >= 0:
            other = next(b, None)


def _difference(
    one: Step, other: Step, a: LayerTable | None, b: LayerTable | None
) -> Difference | None:
    figures: list[tuple[str, Value, Value]] = []
    for name in _FIGURES:
        left, right = getattr(one, name), getattr(other, name)
        if not _equal(left, right):
            figures.append((name, left, right))
    for name in _SETTINGS:
        left, right = getattr(one, name), getattr(other, name)
        if not _equal(left, right):
            figures.append((name, left, right))
    for place, (left, right) in enumerate(zip_longest(one.lrs, other.lrs)):
        if not _equal(left, right):
            figures.append((f"learning rate of group {place}", left, right))
    layers, differ = _layers(one, other, a, b)
    if not figures and not differ:
        return None
    return Difference(one.step, figures, layers, differ)


def _layers(
    one: Step, other: Step, a: LayerTable | None, b: LayerTable | None
) -> tuple[list[tuple[str, float, float]], int | None]:
    if a is None or b is None or a.names != b.names:
        return [], None
    left, right = _norms(one, len(a.names)), _norms(other, len(b.names))
    if left is None or right is None:
        return [], None
    differ = np.flatnonzero((left != right) & ~(np.isnan(left) & np.isnan(right)))
    shown = [(a.names[row], float(left[row]), float(right[row])) for row in differ[:_MOST_LAYERS]]
    return shown, len(differ)


def _norms(step: Step, layers: int) -> Floats | None:
    norms = np.frombuffer(step.norms[: len(step.norms) & ~3], "<f4")
    return norms if len(norms) == layers else None


def _equal(left: Value, right: Value) -> bool:
    return left == right or (left != left and right != right)


def _is_clear(found: Difference) -> bool:
    for name, left, right in found.figures:
        if name not in _RESULTS:
            continue
        if not isinstance(left, float | int) or not isinstance(right, float | int):
            return True
        if not np.isfinite([left, right]).all():
            return True
        if abs(left - right) > CLEARLY_FRAC * max(abs(left), abs(right)):
            return True
    return False


def _only(a: LayerTable | None, b: LayerTable | None) -> list[str]:
    if a is None or b is None:
        return []
    shapes = [
        {name: shape for name, shape in zip(table.names, table.shapes, strict=False)}
        for table in (a, b)
    ]
    names = dict.fromkeys([*a.names, *b.names])
    known = set(a.names) & set(b.names)
    return [
        name for name in names if name not in known or shapes[0].get(name) != shapes[1].get(name)
    ]


def _begun(first: PostMortem, second: PostMortem) -> list[tuple[str, str, str]]:
    rows = []
    sides: list[dict[str, str]] = []
    for each in (first, second):
        info, facts = each.info, each.frame.facts
        said: dict[str, str] = {"command": " ".join(map(str, each.document["run"]["argv"] or []))}
        if info is not None:
            said |= {"host": info.host, "ranks": str(info.world_size), **info.versions}
        if facts is not None:
            said |= {"optimizer": ", ".join(facts.optimizers), "GradScaler": facts.scaler or ""}
            for group in facts.settings[:1]:
                said |= {name: number(value) for name, value in group.items()}
        sides.append(said)
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        left, right = sides[0].get(name, ""), sides[1].get(name, "")
        if left != right:
            rows.append((name, left, right))
    return rows


def _words(value: Value) -> str:
    return value if isinstance(value, str) else number(value)


def _plain(value: Value) -> Value:
    return value if isinstance(value, str) else json_number(value)


def _entry(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "step": found.step,
        "figures": [[name, _plain(a), _plain(b)] for name, a, b in found.figures],
        "layers": [[name, json_number(a), json_number(b)] for name, a, b in found.layers],
        "layers_differ": found.layers_differ,
    }
