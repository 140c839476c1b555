"""What looks at batches tell: remarks for the event log, and words for the symptoms of a step.

A remark is above info only where the batch contradicts its loss function, or where it is not
finite and neither is what became of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tuimon.diagnose.gradients import gradient_bits
from tuimon.diagnose.incidents import MAX_WAITING, PRIMARY
from tuimon.diagnose.labels import Labels, loss_name, target_remarks
from tuimon.model.batches import TensorSummary
from tuimon.model.records import NON_FINITE, AnyRecord, Batch, DeviceStats, Event, Loss, Step
from tuimon.model.text import plain
from tuimon.model.units import number

FIRST_BATCHES = 3  # the trainer looks at so many in a row; the summary waits for them
RAW_SCALE = 100.0  # a spread of inputs or targets that no usual normalisation leaves
MAX_REMARKS = 5  # of batches that are not finite; everything else is said once
NOT_FINITE = "data-not-finite"
_AXES = {2: ("sample", "feature"), 3: ("sample", "place", "feature")}


@dataclass(frozen=True)
class Remark:
    """One line for the event log, without its time."""

    kind: str
    text: str
    severity: str = "info"


class BatchRemarks:
    """Sees every record of one rank in order and answers with events."""

    def __init__(self) -> None:
        self._first = 0
        self._labels = Labels()
        self._constant: dict[str, tuple[int, int]] = {}  # input -> (constant, all) features
        self._said: dict[tuple[str, str], int] = {}  # (kind, severity) -> how often
        self._open: dict[int, str] = {}  # step -> what its batch holds that is not finite
        self._time_s = 0.0

    def see(self, record: AnyRecord) -> list[Event]:
        """Events that this record gives rise to."""
        if isinstance(record, Batch):
            self._time_s = record.time_ns / 1e9
            return self._events(record.step, self._on_batch(record))
        if isinstance(record, Loss) and record.step in self._open:
            return self._events(record.step, self._judge(record.step, is_bad=True))
        if isinstance(record, Step) and record.optimizer == PRIMARY and record.step in self._open:
            return self._events(record.step, self._judge(record.step, is_bad=_went_bad(record)))
        return []

    def close(self) -> list[Event]:
        """The run has ended: what waited for more."""
        remarks = [each for step in list(self._open) for each in self._judge(step, is_bad=False)]
        if 0 < self._first < FIRST_BATCHES:
            remarks += self._sum_up()
        return self._events(None, iter(remarks))

    def _events(self, step: int | None, remarks: Iterator[Remark]) -> list[Event]:
        events = []
        for remark in remarks:
            key = (remark.kind, remark.severity)
            said = self._said.get(key, 0)
            if said < (MAX_REMARKS if remark.kind == NOT_FINITE else 1):
                self._said[key] = said + 1
                text = plain(remark.text)
                events.append(Event(step, self._time_s, remark.severity, remark.kind, text))
        return events

    def _on_batch(self, batch: Batch) -> Iterator[Remark]:
        if batch.why == "first":
            self._first += 1
            if self._first == 1:
                yield Remark("batch", in_words(batch))
                yield from _scale_remarks(batch)
            self._labels.add(batch)
            self._add_constant(batch)
            yield from _duplicate_remarks(batch)
            if self._first == FIRST_BATCHES:
                yield from self._sum_up()
        for seen in batch.losses:
            for kind, text, severity in target_remarks(seen):
                yield Remark(kind, text, severity)
        if found := non_finite_in_words(batch):
            if len(self._open) >= MAX_WAITING:
                self._open.pop(next(iter(self._open)))
            self._open[batch.step] = found

    def _judge(self, step: int, *, is_bad: bool) -> Iterator[Remark]:
        """The step of a batch that is not finite has come to its end, or its loss is known."""
        found = self._open.pop(step)
        if is_bad:
            yield Remark(NOT_FINITE, f"the batch already held {found}", "warning")
        else:
            yield Remark(NOT_FINITE, f"the batch held {found}; its step is finite")

    def _sum_up(self) -> Iterator[Remark]:
        """What the first batches have in common."""
        if text := self._labels.in_words():
            yield Remark("labels", text)
        for name, (constant, features) in self._constant.items():
            if constant:
                text = f"{constant:,} of {features:,} features of input {name} do not vary"
                yield Remark("constant-features", text)

    def _add_constant(self, batch: Batch) -> None:
        for each in batch.inputs:
            if each.constant_features is not None and each.features is not None:
                known = self._constant.get(each.name, (each.features, 0))[0]
                fewest = min(known, each.constant_features)
                self._constant[each.name] = (fewest, each.features)


class NewestBatches:
    """Remembers, for detectors, which steps had a batch that was not finite."""

    def __init__(self) -> None:
        self._found: dict[int, str] = {}

    def see(self, record: AnyRecord) -> None:
        """Note a batch; anything else is no news."""
        if isinstance(record, Batch) and (found := non_finite_in_words(record)):
            if len(self._found) >= MAX_WAITING:
                self._found.pop(next(iter(self._found)))
            self._found[record.step] = found

    def note(self, step: int | None, optimizer: int = PRIMARY) -> str:
        """The end of a sentence about that step; "" when its batch was finite or not looked at."""
        found = self._found.get(-1 if step is None else step) if optimizer == PRIMARY else None
        return f"; the batch already held {found}" if found else ""


def non_finite_in_words(batch: Batch) -> str:
    """ "1 NaN in input 0 (sample 13, feature 7)", inputs before targets; "" when all is finite.

    An additive mask holds -Inf on purpose; what the training has computed itself is no data.
    """
    given = [each for each in batch.inputs if not each.is_computed]
    found = [_bad_in_words(f"input {each.name}", each) for each in given if _is_bad(each)]
    found += [
        _bad_in_words(f"the target of {loss_name(seen)}", seen.target)
        for seen in batch.losses
        if seen.target is not None and _is_bad(seen.target)
    ]
    return " and ".join(found[:3])


def in_words(batch: Batch) -> str:
    """One line about a batch: inputs, then losses with their targets."""
    parts = [f"input {each.name}: {_tensor_in_words(each)}" for each in batch.inputs[:4]]
    if len(batch.inputs) > 4:
        parts.append(f"{len(batch.inputs) - 4} more inputs")
    for seen in batch.losses:
        text = loss_name(seen)
        if seen.facts.classes is not None:
            text += f" of {seen.facts.classes:,} classes"
        if seen.target is not None:
            text += f", target: {_tensor_in_words(seen.target)}"
        parts.append(text)
    if batch.batches_per_epoch is not None:
        parts.append(f"{batch.batches_per_epoch:,} batches an epoch")
    return "; ".join(parts) or "a batch without tensors"


def _tensor_in_words(each: TensorSummary) -> str:
    shape = "×".join(map(str, each.shape)) or "one number"
    text = f"{shape} {each.dtype}".strip() if each.dtype else ""
    if each.why_not:
        return f"{text} (not looked at: {each.why_not})".strip()
    text += f" in {number(each.low)} … {number(each.high)}"
    return text + f", mean {number(each.mean)}, std {number(each.std)}"


def _is_bad(each: TensorSummary) -> bool:
    if each.nan or each.posinf:
        return True
    is_mask = not each.low and not each.high
    return bool(each.neginf) and not is_mask


def _bad_in_words(name: str, each: TensorSummary) -> str:
    counts = ((each.nan, "NaN"), (each.posinf, "+Inf"), (each.neginf, "-Inf"))
    what = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    names = _AXES.get(len(each.first_bad), ("sample",))
    if len(each.first_bad) == len(names):
        places = [f"{axis} {at}" for axis, at in zip(names, each.first_bad, strict=True)]
        where = ", ".join(places)
    else:
        where = f"at {each.first_bad}"
    first = "first: " if (each.nan or 0) + (each.posinf or 0) + (each.neginf or 0) > 1 else ""
    return f"{what} in {name} ({first}{where})"


def _scale_remarks(batch: Batch) -> Iterator[Remark]:
    named = [(f"input {each.name}", each) for each in batch.inputs if not each.is_computed]
    named += [
        (f"the target of {loss_name(seen)}", seen.target)
        for seen in batch.losses
        if seen.target is not None and seen.facts.classes is None
    ]
    for name, each in named:
        if not each.dtype.startswith(("float", "bfloat")) or each.std is None:
            continue
        if max(each.std, abs(each.mean or 0.0)) >= RAW_SCALE:
            text = f"{name} is far from unit scale: {_tensor_in_words(each)}"
            yield Remark("data-scale", text)


def _duplicate_remarks(batch: Batch) -> Iterator[Remark]:
    for each in batch.inputs:
        if each.duplicates and len(each.duplicate_pair) == 2:
            second, first = each.duplicate_pair
            text = (
                f"{each.duplicates:,} of {each.shape[0]:,} samples of input {each.name} equal an "
                f"earlier one of the batch, such as {second} and {first}"
            )
            yield Remark("duplicate-samples", text)


def _went_bad(record: Step | DeviceStats) -> bool:
    """Whether the loss is not finite, or the gradients are not and the update was made."""
    losses = [value for value in (record.loss, record.loss_sum) if value is not None]
    if not all(map(math.isfinite, losses)):
        return True
    skipped = isinstance(record, Step) and record.skipped
    return not skipped and bool((gradient_bits(record) or 0) & NON_FINITE)
