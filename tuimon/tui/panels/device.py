"""Device memory, the gradient scaler's account, and the step with its cost."""

from __future__ import annotations

import math

import numpy as np

from tuimon.model.records import DeviceReading, Event
from tuimon.model.snapshots import SnapshotState
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, duration_s, number, percent, size_bytes
from tuimon.tui.draw.braille import spark
from tuimon.tui.draw.rows import Row, data, fit, framed, shortened, text, width_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.header import visible_alert
from tuimon.tui.panels.sampled import sampling_words
from tuimon.tui.scene import Scene
from tuimon.view.frame import LATE, LIVE, THINNED, Frame

_BAR_CELLS = 12
_WHOLE = 1 << 10  # cells: nothing is left out
_FULL_WARN = 0.9  # a device above this share of its memory is close to an out-of-memory


def share_bar(look: Look, share: float | None, width: int, colour: str = "ok") -> Row:
    """A bar of a fraction; without one a rail."""
    full = 0 if share is None else min(width, max(0, round(width * share)))
    if share is not None and share >= _FULL_WARN:
        colour = "warn"
    return [
        text(look, look.glyphs.bar * full, colour),
        text(look, look.glyphs.rail * (width - full), "faint"),
    ]


def share_of(used: float | None, total: float | None) -> float | None:
    """used ÷ total where both are known."""
    return None if used is None or not total else used / total


def gib(value: float | None) -> str:
    """Bytes as GiB with one decimal, for columns that line up."""
    return DASH if value is None else f"{value / 2**30:.1f}".removesuffix(".0")


def whole_percent(share: float | None) -> str:
    """A fraction as whole per cent."""
    return DASH if share is None else f"{share * 100:.0f}%"


def device_note(frame: Frame) -> str:
    """Why there is no device reading."""
    if frame.system is None:
        return "no reading yet"
    return frame.system.device_note or "no accelerator"


class MemoryPanel:
    """Memory of each device, the allocator's account, host memory."""

    name = "memory"
    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes about once a second."""
        frame = scene.frame
        return (frame.system, tuple(frame.memory.items()))

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, frame = scene.look, scene.frame
        devices = frame.system.devices if frame.system else []
        inner, room = width - 2, height - 2
        body: list[Row] = [self._device(look, device, inner) for device in devices]
        if not devices:
            body.append([text(look, " device  ", "dim"), data(look, device_note(frame), "dim")])
        for memory in frame.memory.values():
            figures = [
                [text(look, f" {word} ", "dim"), text(look, gib(value), "strong")]
                for word, value in (
                    ("alloc", memory.allocated_bytes),
                    ("reserved", memory.reserved_bytes),
                    ("peak", memory.peak_bytes),
                )
            ]
            body.append([part for group in figures for part in group])
        body.append(self._host(look, frame, inner))
        title = [text(look, "device memory", "strong", bold=True)]
        names = sorted({device.name for device in devices})
        reading = [[data(look, f"{names[0][:18]} ×{len(devices)}", "dim")]] if names else []
        if len(body) > room:
            hidden = len(body) - room + 1
            body = [*body[: room - 1], [text(look, f" and {hidden} lines more (z)", "dim")]]
        rows = [fit(look, row, inner) for row in body[:room]]
        rows += [fit(look, [], inner) for _ in range(room - len(rows))]
        return framed(look, rows, width, title=title, reading=reading, focused=focused)

    def _device(self, look: Look, device: DeviceReading, width: int) -> Row:
        share = share_of(device.memory_used_bytes, device.memory_total_bytes)
        used, total = gib(device.memory_used_bytes), gib(device.memory_total_bytes)
        row: Row = [text(look, f" {device.index} ", "dim")]
        extra: list[Row] = []
        if device.utilisation_frac is not None:
            extra.append([text(look, f"{device.utilisation_frac * 100:.0f}%", "dim")])
        if device.temperature_c is not None:
            extra.append([text(look, f"{device.temperature_c:.0f}°", "dim")])
        if device.power_w is not None:
            extra.append([text(look, f"{device.power_w:.0f} W", "dim")])
        row += share_bar(look, share, _BAR_CELLS if width < 60 else width - 46)
        row += [text(look, f" {used:>5}", "strong", bold=True), text(look, f"/{total}G", "dim")]
        while extra and width_of(row) + sum(width_of(group) + 1 for group in extra) > width:
            extra.pop()
        return [*row, *(part for group in extra for part in (text(look, " "), *group))]

    def _host(self, look: Look, frame: Frame, width: int) -> Row:
        system = frame.system
        if system is None:
            return [text(look, " host    ", "dim"), text(look, DASH, "dim")]
        share = share_of(system.host_memory_used_bytes, system.host_memory_total_bytes)
        used = size_bytes(system.host_memory_used_bytes)
        total = size_bytes(system.host_memory_total_bytes)
        row: Row = [text(look, " host ", "dim"), *share_bar(look, share, 11, "key")]
        row += [text(look, f" {used}", "strong"), text(look, f"/{total}", "dim")]
        return row


class AmpPanel:
    """Loss scale, its history and the skipped steps."""

    name = "amp"
    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes with the scale and the skips."""
        series = scene.frame.series.get("loss_scale")
        newest = None
        if scene.frame.amp is not None:
            amp = scene.frame.amp
            newest = (amp.scale, amp.skipped, amp.last_skipped_step, amp.attempted // 50)
        return (newest, series is not None, scene.frame.step is None)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, amp = scene.look, scene.frame.amp
        title = [text(look, "amp scale", "strong", bold=True)]
        if amp is None:
            # Before the first step nobody knows whether there is a scaler.
            known = scene.frame.step is not None
            words = " no gradient scaler in this run" if known else f" {DASH}"
            body = [[text(look, words, "dim")]]
            body += [[] for _ in range(height - 3)]
            return framed(look, body[: height - 2], width, title=title, focused=focused)
        share = amp.skipped / amp.attempted if amp.attempted else None
        power = ""
        if amp.scale is not None and amp.scale > 0 and math.log2(amp.scale).is_integer():
            power = f"  2^{int(math.log2(amp.scale))}"
        skipped = "warn" if amp.skipped else "strong"
        last = count(amp.last_skipped_step)
        body = [
            [
                text(look, " scale ", "dim"),
                text(look, number(amp.scale, 6), "strong", bold=True),
                text(look, power, "dim"),
            ],
            [text(look, " "), *self._history(scene, width - 4)],
            [
                text(look, " skipped ", "dim"),
                text(look, count(amp.skipped), skipped, bold=True),
                text(look, f" ({percent(share)})", "dim"),
            ],
            [text(look, " last skip at step ", "dim"), text(look, last)],
        ]
        rows = [fit(look, row, width - 2) for row in body[: height - 2]]
        rows += [fit(look, [], width - 2) for _ in range(height - 2 - len(rows))]
        return framed(look, rows, width, title=title, focused=focused)

    def _history(self, scene: Scene, width: int) -> Row:
        series = scene.frame.series.get("loss_scale")
        look = scene.look
        if series is None or series.first_step is None or series.last_step is None or width < 2:
            return [text(look, DASH, "dim")]
        end = max(series.last_step + 1, series.first_step + width)
        low = series.envelope(series.first_step, end, width).low
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(low > 0, np.log2(np.maximum(low, 1e-38)), np.nan)
        bars = spark(logs, width, look.glyphs.spark)
        return [text(look, bars, look.series("loss_scale")[1])]


class StepPanel:
    """Clipping, learning rates, where the time of a step goes, what tuimon costs."""

    name = "step"
    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes when a printed figure changes."""
        return tuple(part.text for row in self._body(scene, _WHOLE) for part in row)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look = scene.look
        title = [text(look, "step", "strong", bold=True)]
        body = [fit(look, row, width - 2) for row in self._body(scene, width - 2)[: height - 2]]
        body += [fit(look, [], width - 2) for _ in range(height - 2 - len(body))]
        step_s = scene.frame.timing.step_s
        reading = [[text(look, duration_s(step_s), "strong", bold=True)]]
        return framed(look, body, width, title=title, reading=reading, focused=focused)

    def _body(self, scene: Scene, width: int) -> list[Row]:
        look, frame = scene.look, scene.frame
        timing, system = frame.timing, frame.system
        parts: Row = [text(look, " time ", "dim")]
        for word, value in (
            ("data", timing.data_s),
            ("fwd", timing.forward_s),
            ("bwd", timing.backward_s),
            ("opt", timing.optimizer_s),
        ):
            share = share_of(value, timing.step_s)
            shown = DASH if share is None else f"{share * 100:.0f}%"
            parts += [text(look, f" {word} ", "dim"), text(look, shown)]
        lrs = " ".join(number(lr, 3) for lr in frame.lrs[:4]) or DASH
        reasons, thinned = lost_and_thinned(frame)
        lost = sum(reasons.values())
        cost: Row = [text(look, " cost  ", "dim"), text(look, percent(timing.cost_frac))]
        cost += [text(look, " of a step, lost ", "dim"), text(look, count(lost), _warns(lost))]
        if lost:
            most = max(reasons, key=reasons.__getitem__)
            why = text(look, f" {most}{', …' if len(reasons) > 1 else ''}", "dim")
            cost += [why] if width_of([*cost, why]) <= width else []
        if thinned:
            old = text(look, f", thinned {count(sum(thinned.values()))}", "dim")
            cost += [old] if width_of([*cost, old]) <= width else []
        governor = frame.samples.governor if frame.samples else None
        extras: Row = [text(look, " extra ", "dim"), text(look, "sampling ", "dim")]
        extras.append(text(look, sampling_words(governor)))
        host: Row = [text(look, " host  ", "dim")]
        cpu = system.host_cpu_frac if system else None
        trainer = system.trainer_cpu_frac if system else None
        rss = system.trainer_rss_bytes if system else None
        host += [text(look, whole_percent(cpu)), text(look, " cpu, train ", "dim")]
        host += [text(look, whole_percent(trainer)), text(look, f" {size_bytes(rss)}", "dim")]
        snapshots = [] if frame.snapshots is None else [snapshot_words(look, frame.snapshots)]
        return [
            [text(look, " clip  ", "dim"), *clip_words(look, frame)],
            [text(look, " lr    ", "dim"), text(look, lrs), *lr_at_cross(scene)],
            parts,
            cost,
            *snapshots,
            extras,
            host,
        ]


def lr_at_cross(scene: Scene) -> Row:
    """That the rates beside it are those of now, and the first one at the crosshair's step."""
    look, cross, series = scene.look, scene.charts.cross_step, scene.frame.series.get("lr")
    if cross is None or series is None or cross == series.last_step:
        return []
    then = series.envelope(cross, cross + 1, 1)
    row: Row = [text(look, " now", "dim")]
    if then.flags[0]:
        row += [text(look, f"  {number(float(then.high[0]), 3)}", "key")]
        row.append(text(look, f" at {cross:,}", "dim"))
    return row


def snapshot_words(look: Look, state: SnapshotState) -> Row:
    """What a copy of the healthy state costs, of time and of memory."""
    row: Row = [text(look, " snap  ", "dim")]
    if state.unable:
        return [*row, text(look, "none: ", "warn"), data(look, state.unable, "dim")]
    if state.took_s is None:
        return [*row, text(look, f"every {state.every:,}, none yet", "dim")]
    share = whole_percent(state.share_frac)
    row += [text(look, duration_s(state.took_s)), text(look, f"/{state.every:,} ", "dim")]
    row += [text(look, share), text(look, " of a step ", "dim")]
    return [*row, text(look, size_bytes(state.held_bytes))]


def lost_and_thinned(frame: Frame) -> tuple[dict[str, int], dict[str, int]]:
    """What is missing from the pictures, and what gave way on purpose, by reason."""
    lost = {reason: value for reason, value in frame.lost.items() if reason not in THINNED}
    return lost, {reason: value for reason, value in frame.lost.items() if reason in THINNED}


def _warns(lost: int) -> str:
    return "warn" if lost else "text"


def clip_words(look: Look, frame: Frame) -> Row:
    """Who clips and at which bound."""
    if frame.step is None:
        return [text(look, DASH)]
    bound = number(frame.clip.max_norm)
    if frame.clip.mode == "on":
        return [text(look, f"on {bound}", "ok", bold=True), text(look, " by tuimon", "dim")]
    if frame.clip.mode == "off":
        return [text(look, "off", "warn", bold=True), text(look, " by tuimon", "dim")]
    if frame.clip.max_norm is None:
        return [text(look, "none"), text(look, " in the script", "dim")]
    return [text(look, bound, "strong"), text(look, " by the script", "dim")]


class CompactPanel:
    """Device, scaler, clipping and the newest event in two lines, for narrow terminals."""

    name = "compact"
    can_focus = False
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes when a printed figure changes."""
        frame = scene.frame
        newest = frame.events[-1] if frame.events else None
        figures = tuple(part.text for group in self._figures(scene) for part in group)
        return (figures, newest, visible_alert(scene) is None)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """Two rows."""
        look, frame = scene.look, scene.frame
        figures: Row = []
        for group in self._figures(scene):
            if width_of(figures) + width_of(group) <= width:
                figures += group
        if not frame.events:
            line = [text(look, " no events yet", "dim")]
        else:
            line = self._newest(scene, frame.events[-1], width)
        return [fit(look, figures, width), fit(look, line, width)]

    def _newest(self, scene: Scene, event: Event, width: int) -> Row:
        """The newest event; where the line above tells of it, what is known beyond that."""
        look, alert = scene.look, visible_alert(scene)
        colour = {"critical": "bad", "warning": "warn"}.get(event.severity, "key")
        mark = getattr(look.glyphs, event.severity, look.glyphs.info)
        # What an autopsy says begins with the step it is about.
        named = event.step is None or event.kind == "autopsy"
        head: Row = [text(look, f" {mark} ", colour, bold=True)]
        detail = ", ".join(plain(line) for line in event.detail.splitlines())
        is_told = alert is not None and alert.event == event and scene.frame.state in (LIVE, LATE)
        if not (detail and is_told):
            head.append(text(look, "" if named else f"{event.step:,} ", "dim"))
            head.append(data(look, f"{event.text}  "))
        return [*head, text(look, shortened(look, detail, width - width_of(head)), "dim")]

    def _figures(self, scene: Scene) -> list[Row]:
        look, frame = scene.look, scene.frame
        system = frame.system
        if system is not None and system.devices:
            device = system.devices[0]
            share = share_of(device.memory_used_bytes, device.memory_total_bytes)
            row = [text(look, " gpu ", "dim"), *share_bar(look, share, 10)]
            row.append(text(look, f" {gib(device.memory_used_bytes)}", "strong", bold=True))
            row.append(text(look, f"/{gib(device.memory_total_bytes)}G", "dim"))
        else:
            rss = system.trainer_rss_bytes if system else None
            row = [text(look, " rss ", "dim"), text(look, size_bytes(rss))]
        groups: list[Row] = [row, [text(look, "  clip ", "dim"), *clip_words(look, frame)[:1]]]
        rate = number(frame.lrs[0] if frame.lrs else None, 3)
        groups.append([text(look, "  lr ", "dim"), text(look, rate), *lr_at_cross(scene)[:1]])
        if frame.amp is not None:
            scale = number(frame.amp.scale, 6)
            groups.append([text(look, "  amp ", "dim"), text(look, scale, "strong")])
            colour = "warn" if frame.amp.skipped else "text"
            skipped = count(frame.amp.skipped)
            groups.append([text(look, "  skipped ", "dim"), text(look, skipped, colour)])
        cost = percent(frame.timing.cost_frac)
        groups.append([text(look, "  cost ", "dim"), text(look, cost)])
        if (kept := frame.snapshots) is not None:
            words = f"/{kept.every:,} {size_bytes(kept.held_bytes)}"
            took = duration_s(kept.took_s)
            groups.append(
                [text(look, "  snap ", "dim"), text(look, took), text(look, words, "dim")]
            )
        return groups
