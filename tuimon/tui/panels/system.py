"""The machine: each accelerator, the host, where a step's time goes, what tuimon itself takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tuimon.model.records import DeviceReading, System
from tuimon.model.samples import Governor
from tuimon.model.units import DASH, count, duration_s, number, percent, size_bytes
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, text, thumb_of, width_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.device import (
    device_note,
    gib,
    lost_and_thinned,
    share_bar,
    share_of,
    whole_percent,
)
from tuimon.tui.panels.sampled import is_over, sampling_words
from tuimon.tui.scene import Scene
from tuimon.view.frame import Frame

_NO_DEVICE = "load, memory, heat and power of each one would be here"
_LABEL = 10
_BAR = 20
_WAITS_FOR_DATA = 0.3  # share of a step from which the loader is worth a look
_HIGH_COST = 0.05
_ON_PURPOSE = " records, on purpose"
_PARTS = (
    ("data", "data_s"),
    ("forward", "forward_s"),
    ("backward", "backward_s"),
    ("optimizer", "optimizer_s"),
)


def course(values: Sequence[float | None], width: int, ramp: str, top: float) -> str:
    """The newest values as bars from 0 to `top`; what is not known is a blank."""
    bars = []
    for value in list(values)[-width:]:
        if value is None or not math.isfinite(value):
            bars.append(" ")
            continue
        share = min(1.0, max(0.0, value / top)) if top > 0 else 0.0
        bars.append(ramp[min(len(ramp) - 1, int(share * len(ramp)))])
    return "".join(bars).rjust(width)


def readings_of(frame: Frame) -> list[System]:
    """Readings about a second apart, oldest first."""
    past = list(frame.past.readings) if frame.past is not None else []
    if frame.system is not None and (not past or past[-1].time_s < frame.system.time_s):
        past.append(frame.system)
    return past


class _Readings:
    """What the panels of readings share: they change about once a second."""

    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes with the readings."""
        frame = scene.frame
        place = scene.scroll(getattr(self, "name", ""))
        return (frame.system, frame.timing, tuple(frame.memory.items()), place.top, frame.samples)


def in_sight(
    scene: Scene, name: str, rows: Sequence[Row], size: tuple[int, int]
) -> tuple[list[Row], tuple[int, int] | None]:
    """The rows that a panel of so many cells shows, and its scroll thumb; stays where it is put."""
    look, place, (width, room) = scene.look, scene.scroll(name), size
    place.is_at_end = False
    top = place.settle(len(rows), room)
    place.is_at_end = False
    body = [fit(look, row, width) for row in rows[top : top + room]]
    body += [fit(look, [], width) for _ in range(room - len(body))]
    return body, thumb_of(top, room, len(rows))


class DevicesPanel(_Readings):
    """Each accelerator with its course over the last minutes; scrolls."""

    name = "devices"

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, frame = scene.look, scene.frame
        room, inner = height - 2, width - 2
        title: Row = [text(look, "accelerators", "strong", bold=True)]
        devices = frame.system.devices if frame.system else []
        if not devices:
            words = f"{device_note(frame)}\n\n{_NO_DEVICE}" if room > 2 else device_note(frame)
            body = centred(look, words, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        past = readings_of(frame)
        rows = [row for device in devices for row in _device(look, frame, device, past, inner)]
        body, thumb = in_sight(scene, self.name, rows[:-1], (inner, room))
        names = sorted({device.name for device in devices})
        reading = [[data(look, f"{names[0][:24]} ×{len(devices)}", "dim")]]
        return framed(look, body, width, title=title, reading=reading, focused=focused, thumb=thumb)


def _device(
    look: Look, frame: Frame, device: DeviceReading, past: Sequence[System], width: int
) -> list[Row]:
    """Load, memory, temperature and power of one accelerator, a line each."""
    same = [
        next((each for each in reading.devices if each.index == device.index), None)
        for reading in past
    ]
    room = max(8, width - _LABEL - _BAR - 22)

    def over(pick: Callable[[DeviceReading], float | None], top: float) -> Row:
        values = [None if each is None else pick(each) for each in same]
        return [text(look, course(values, room, look.glyphs.spark, top), "key")]

    memory = share_of(device.memory_used_bytes, device.memory_total_bytes)
    used = f"{gib(device.memory_used_bytes)}/{gib(device.memory_total_bytes)} GiB"
    rows: list[Row] = [
        [
            text(look, f" {device.index} ", "strong", bold=True),
            data(look, device.name, "text"),
            data(look, f"  {device.kind}", "dim"),
        ],
        [
            *_label(look, "load"),
            *share_bar(look, device.utilisation_frac, _BAR, "key"),
            text(look, f" {whole_percent(device.utilisation_frac):<18}", "strong"),
            *over(lambda each: each.utilisation_frac, 1.0),
        ],
        [
            *_label(look, "memory"),
            *share_bar(look, memory, _BAR),
            text(look, f" {used:<18}", "strong"),
            *over(lambda each: share_of(each.memory_used_bytes, each.memory_total_bytes), 1.0),
        ],
        [
            *_label(look, "heat"),
            text(look, _degrees(device), "text"),
            text(look, "  power ", "dim"),
            text(look, DASH if device.power_w is None else f"{device.power_w:.0f} W"),
        ],
    ]
    return [*rows, *_allocated(look, frame, device.index, width), []]


def _allocated(look: Look, frame: Frame, index: int, width: int) -> list[Row]:
    """What torch's own allocator says of a device."""
    rows: list[Row] = []
    for name, account in frame.memory.items():
        if not name.endswith(f":{index}"):
            continue
        row = _label(look, "torch")
        for word, value in (
            ("allocated", account.allocated_bytes),
            ("reserved", account.reserved_bytes),
            ("peak", account.peak_bytes),
        ):
            told = [text(look, f"{word} ", "dim"), text(look, f"{size_bytes(value)}  ")]
            if width_of(row) + width_of(told) > width + 2:  # blanks at the end may go
                rows.append(row)
                row = _label(look, "")
            row += told
        rows.append(row)
    return rows


def _degrees(device: DeviceReading) -> str:
    return DASH if device.temperature_c is None else f"{device.temperature_c:.0f} °C"


def _label(look: Look, word: str) -> Row:
    return [text(look, f" {word:<{_LABEL - 1}}", "dim")]


class HostPanel(_Readings):
    """Processor and memory of the host and of the training over the last minutes."""

    name = "host"

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, frame = scene.look, scene.frame
        room, inner = height - 2, width - 2
        title: Row = [text(look, "host", "strong", bold=True)]
        if frame.system is None:
            words = "the scribe reads the host once a second, as soon as the training runs"
            body = centred(look, words, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        rows = self._rows(look, frame, inner, wide=room >= _TALL)
        body, thumb = in_sight(scene, self.name, rows, (inner, room))
        reading = [[data(look, frame.host, "dim")]] if frame.host else []
        return framed(look, body, width, title=title, reading=reading, focused=focused, thumb=thumb)

    def _rows(self, look: Look, frame: Frame, width: int, *, wide: bool) -> list[Row]:
        system, past = frame.system, readings_of(frame)
        assert system is not None
        share = share_of(system.host_memory_used_bytes, system.host_memory_total_bytes)
        most = max((each.trainer_rss_bytes or 0 for each in past), default=0)
        cores = max(1.0, *(each.trainer_cpu_frac or 0.0 for each in past)) if past else 1.0
        host = f"{size_bytes(system.host_memory_used_bytes)}"
        total = f"/{size_bytes(system.host_memory_total_bytes)}"
        lines = (
            ("cpu", whole_percent(system.host_cpu_frac), " of all cores",
             [each.host_cpu_frac for each in past], 1.0),
            ("memory", host, f"{total} {whole_percent(share)}",
             [share_of(e.host_memory_used_bytes, e.host_memory_total_bytes) for e in past], 1.0),
            ("training", whole_percent(system.trainer_cpu_frac), " of a core",
             [each.trainer_cpu_frac for each in past], cores),
            ("its memory", size_bytes(system.trainer_rss_bytes), "",
             [float(e.trainer_rss_bytes) if e.trainer_rss_bytes else None for e in past],
             float(most)),
        )  # fmt: skip
        rows: list[Row] = []
        for word, value, unit, values, top in lines:
            head = [text(look, f" {word:<11}", "dim"), text(look, value, "strong", bold=True)]
            head.append(text(look, unit, "dim"))
            if wide:
                bars = course(values, width - 2, look.glyphs.spark, top)
                rows += [head, [text(look, " "), text(look, bars, "key")]]
            else:
                cells = max(0, width - 38)
                bars = course(values, cells, look.glyphs.spark, top)
                rows.append([*fit(look, head, 36), text(look, bars, "key")])
        return rows


_TALL = 8  # rows from which each line has its course below it


class SplitPanel(_Readings):
    """Where the time of a step goes, on the host's clock."""

    name = "split"

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, timing = scene.look, scene.frame.timing
        room, inner = height - 2, width - 2
        title: Row = [text(look, "one step", "strong", bold=True)]
        if timing.step_s is None:
            words = "the parts of a step are here after the first steps"
            body = centred(look, words, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        rows = split_rows(look, scene.frame, inner)
        body, thumb = in_sight(scene, self.name, rows, (inner, room))
        rate = 1 / timing.step_s if timing.step_s > 0 else None
        reading = [[text(look, duration_s(timing.step_s), "strong", bold=True)]]
        reading.append([text(look, f"{number(rate, 3)} a second", "dim")])
        return framed(look, body, width, title=title, reading=reading, focused=focused, thumb=thumb)


def split_rows(look: Look, frame: Frame, width: int) -> list[Row]:
    """A bar for each part of a step, and what is left of it."""
    timing = frame.timing
    known = {word: getattr(timing, name) for word, name in _PARTS}
    told = sum(value for value in known.values() if value is not None)
    whole = timing.step_s or 0.0
    known["the rest"] = max(0.0, whole - told) if whole else None
    cells = max(4, width - 28)
    rows: list[Row] = []
    for word, value in known.items():
        share = share_of(value, timing.step_s)
        waits = word == "data" and share is not None and share > _WAITS_FOR_DATA
        full = 0 if share is None else min(cells, round(cells * share))
        rows.append(
            [
                text(look, f" {word:<{_LABEL}}", "warn" if waits else "dim"),
                text(look, look.glyphs.bar * full, "warn" if waits else "key"),
                text(look, look.glyphs.rail * (cells - full), "faint"),
                text(look, f" {whole_percent(share):>4}", "strong", bold=True),
                text(look, f" {duration_s(value):>9}", "dim"),
            ]
        )
        if waits:
            rows.append([text(look, f" {'':<{_LABEL}}the model waits for its data", "warn")])
    return rows


class CostPanel(_Readings):
    """What tuimon takes of the training and of the host, how often it samples, what it lost."""

    name = "cost"

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, frame = scene.look, scene.frame
        room, inner = height - 2, width - 2
        body, thumb = in_sight(scene, self.name, _cost_rows(look, frame), (inner, room))
        title: Row = [text(look, "tuimon itself", "strong", bold=True)]
        return framed(look, body, width, title=title, focused=focused, thumb=thumb)


def _sampling_rows(look: Look, governor: Governor | None) -> list[Row]:
    """How often it is sampled and for what; where that is more than it may be, why."""
    row: Row = [*_label(look, "sampling"), text(look, sampling_words(governor))]
    if governor is None or governor.stride is None:
        return [row]
    if governor.note:
        return [row, [*_label(look, ""), data(look, governor.note, "warn")]]
    if is_over(governor):
        return [row, [*_label(look, ""), text(look, "the first ones are paid off", "dim")]]
    return [[*row, text(look, f" of at most {percent(governor.budget_frac)}", "dim")]]


def _cost_rows(look: Look, frame: Frame) -> list[Row]:
    governor = frame.samples.governor if frame.samples else None
    cost = frame.timing.cost_frac
    system = frame.system
    high = cost is not None and cost > _HIGH_COST
    scribe = whole_percent(system.scribe_cpu_frac) if system else DASH
    memory = size_bytes(system.scribe_rss_bytes) if system else DASH
    rows: list[Row] = [
        [
            *_label(look, "step"),
            text(look, percent(cost), "warn" if high else "strong", bold=True),
            text(look, " of its time", "dim"),
        ],
        *_sampling_rows(look, governor),
        [
            *_label(look, "scribe"),
            text(look, scribe),
            text(look, " of a core, ", "dim"),
            text(look, memory),
        ],
    ]
    lost, thinned = lost_and_thinned(frame)
    rows += _counted(look, "lost", lost, "warn", " records")
    return [*rows, *(_counted(look, "thinned", thinned, "text", _ON_PURPOSE) if thinned else [])]


def _counted(look: Look, word: str, found: dict[str, int], tone: str, what: str) -> list[Row]:
    """How many records in all, and by reason."""
    total = sum(found.values())
    shown = text(look, count(total), tone if total else "ok")
    rows: list[Row] = [[*_label(look, word), shown, text(look, what, "dim")]]
    ordered = sorted(found.items(), key=lambda entry: -entry[1])
    return rows + [
        [*_label(look, ""), text(look, f"{value:,} ", tone), data(look, reason, "dim")]
        for reason, value in ordered
    ]
