"""The AMP ledger: the GradScaler's account in words, and the updates it left out."""

from __future__ import annotations

import math

from tuimon.model.amp import FP16_MAX, AmpCalls, AmpSkip, Headroom
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, number, percent
from tuimon.tui.draw.rows import Row, centred, fit, framed, text, thumb_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.layer_screen import NO_SCALER
from tuimon.tui.panels.incident import wrapped
from tuimon.tui.scene import Scene
from tuimon.tui.stories.lines import Line, Part, heading, pair, table
from tuimon.view.frame import Amp

_VERDICT_TONES = {"healthy": "ok", "calibrating": "key", "collapsing": "bad"}
TWO_COLUMNS = 70
_NAME_CELLS = 32
_LOW_FACTOR = 4.0  # two growths of the scale below the largest number

# Counts of `AmpCalls` that stand for a wrong order, in words.
_WRONG = {
    "direct_steps": "optimizer.step() past the scaler, on gradients that carry its scale",
    "unscaled_steps": "scaler.step() on gradients of a loss that was not scaled",
    "clipped_scaled": "clipping before scaler.unscale_(): the bound meets scaled gradients",
    "backward_after_unscale": "backward after unscale_(): scaled gradients added to unscaled ones",
}


def scale_words(scale: float | None) -> str:
    """A loss scale, as a power of two where it is one."""
    if scale is None:
        return DASH
    words = number(scale, 6)
    if scale > 0 and math.isfinite(scale) and math.log2(scale).is_integer():
        words += f" = 2^{int(math.log2(scale))}"
    return words


class AccountPanel:
    """Verdict with its reason, scale, what was left out, headroom, order of the calls."""

    name = "account"
    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes with the account; the count of attempts alone is drawn now and then."""
        amp = scene.frame.amp
        if amp is None:
            return scene.frame.step is None
        told = (amp.scale, amp.skipped, amp.verdict, amp.why, amp.gradient, amp.activation)
        return (told, amp.calls, amp.attempted // 10, scene.scroll(self.name).top)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, amp = scene.look, scene.frame.amp
        room, inner = height - 2, width - 2
        title = [text(look, "amp ledger", "strong", bold=True)]
        if amp is None:
            words = NO_SCALER if scene.frame.step is not None else "waiting for the first step"
            body = centred(look, words, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        rows = _columns(look, (_scale(amp), _facts(amp)), inner)
        place = scene.scroll(self.name)
        place.is_at_end = False
        top = place.settle(len(rows), room)
        place.is_at_end = False
        thumb = thumb_of(top, room, len(rows))
        rows = rows[top : top + room]
        rows += [fit(look, [], inner) for _ in range(room - len(rows))]
        reading = [[text(look, amp.verdict, _VERDICT_TONES.get(amp.verdict, "dim"), bold=True)]]
        return framed(look, rows, width, title=title, reading=reading, focused=focused, thumb=thumb)


def _columns(look: Look, parts: tuple[list[Line], list[Line]], width: int) -> list[Row]:
    """The two parts below each other, or beside each other where that is the better shape."""
    if width < TWO_COLUMNS:
        rows = [
            row for line in (*parts[0], Line(), *parts[1]) for row in wrapped(look, line, width)
        ]
        rows = [fit(look, row, width) for row in rows]
    else:
        left = [fit(look, row, width // 2) for line in parts[0]
                for row in wrapped(look, line, width // 2)]  # fmt: skip
        right = [row for line in parts[1] for row in wrapped(look, line, width - width // 2)]
        left += [fit(look, [], width // 2) for _ in range(len(right) - len(left))]
        right += [[] for _ in range(len(left) - len(right))]
        rows = [fit(look, [*a, *b], width) for a, b in zip(left, right, strict=True)]
    return rows


def _scale(amp: Amp) -> list[Line]:
    share = amp.skipped / amp.attempted if amp.attempted else None
    lines = [pair("verdict", amp.verdict, _VERDICT_TONES.get(amp.verdict, "text"))]
    if amp.why:
        lines.append(pair("because", amp.why, "bad" if amp.verdict == "collapsing" else "text"))
    lines += [
        Line(((scale_words(amp.scale), "strong"),), "scale"),
        pair("at first", scale_words(amp.scale_first)),
        pair("skipped", f"{count(amp.skipped)} of {count(amp.attempted)} ({percent(share)})",
             "warn" if amp.skipped else "text"),
        pair("last skip", f"step {count(amp.last_skipped_step)}"),
    ]  # fmt: skip
    return lines


def _facts(amp: Amp) -> list[Line]:
    """What is wrong with the order of the calls comes first: it explains the rest."""
    title = Line((("headroom", "strong"), (f"  below {FP16_MAX:,.0f}", "dim")), is_heading=True)
    lines = _wrong_order(amp.calls)
    lines += [Line()] if lines else []
    lines += [title, *_headroom("gradient", amp.gradient), *_headroom("output", amp.activation)]
    return lines + _calls(amp.calls)


def _headroom(label: str, headroom: Headroom | None) -> list[Line]:
    if headroom is None:
        return [pair(label, f"{DASH} not sampled yet", "dim")]
    tone = "bad" if headroom.factor < 1 else "warn" if headroom.factor < _LOW_FACTOR else "text"
    figures = (
        (f"{number(headroom.factor, 3)}×", tone),
        (f"  max {number(headroom.absmax, 3)}", "text"),
    )
    where = f"{_tail(plain(headroom.name))} at {count(headroom.step)}"
    return [Line(figures, label), Line(((where, "dim"),), is_whole=True)]


def _wrong_order(calls: AmpCalls | None) -> list[Line]:
    """What was called in a wrong order, how often, and since when."""
    if calls is None:
        return []
    lines: list[Line] = []
    for name, words in _WRONG.items():
        if times := getattr(calls, name):
            since = calls.first.get(name)
            when = "" if since is None else f", first at step {since:,}"
            lines.append(Line(((words, "bad"), (f"  {times:,} times{when}", "warn"))))
    return [Line((("wrong order", "strong"),), is_heading=True), *lines] if lines else []


def _calls(calls: AmpCalls | None) -> list[Line]:
    """What was called how often."""
    note = "" if calls is None else f"of {count(calls.scaler_steps)} updates"
    lines = heading("calls", note if _wrong_order(calls) else f"{note}, in order".lstrip(", "))
    if calls is None:
        return [*lines, Line(((f"{DASH} nothing was counted", "dim"),))]
    counted = (
        ("scale()", calls.scaled),
        ("unscale_()", calls.unscales),
        ("scaler.step()", calls.scaler_steps),
        ("  optimizer.step()", calls.optimizer_steps),
        ("update()", calls.updates),
    )
    lines += [Line(((f"{word:<20}", "dim"), (f"{value:>9,}", "text"))) for word, value in counted]
    if calls.growth_interval is not None:
        grow, back = number(calls.growth_factor), number(calls.backoff_factor)
        words = f"×{grow} after {calls.growth_interval:,} steps without a skip, ×{back} at a skip"
        lines.append(Line(((words, "dim"),)))
    return lines


class SkipsPanel:
    """The updates that were left out, newest first, each with its first overflowing gradient."""

    name = "skips"
    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes with the list and the scroll offset."""
        amp = scene.frame.amp
        return (None if amp is None else (amp.skips, amp.skipped), scene.skips_top)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, amp = scene.look, scene.frame.amp
        room, inner = height - 2, width - 2
        title = [text(look, "skipped updates", "strong", bold=True)]
        if amp is None or not amp.skips:
            words = "" if amp is None else "no update was left out so far"
            body = centred(look, words, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        lines = table(
            [_HEADS, *(_skip(each) for each in reversed(amp.skips))], right=frozenset({0, 1, 3})
        )
        rows = [
            fit(look, [text(look, f" {w}" if i == 0 else w, tone) for i, (w, tone) in
                       enumerate(line.parts)], inner)
            for line in lines
        ]  # fmt: skip
        head, rest, below = rows[0], rows[1:], max(1, room - 1)
        top = scene.skips_top = max(0, min(scene.skips_top, len(rest) - below))
        body = [head, *rest[top : top + below]]
        body += [fit(look, [], inner) for _ in range(room - len(body))]
        hidden = amp.skipped - len(amp.skips)
        reading = [[text(look, count(amp.skipped), "warn", bold=True)]]
        if hidden > 0:
            reading.append([text(look, f"{hidden:,} without details", "dim")])
        return framed(look, body[:room], width, title=title, reading=reading, focused=focused)


_HEADS: tuple[Part, ...] = tuple(
    (word, "dim") for word in ("step", "scale", "first to overflow", "bad", "its values")
)


def _tail(name: str) -> str:
    """The end of a long name: that is where it differs from others."""
    return name if len(name) <= _NAME_CELLS else "…" + name[1 - _NAME_CELLS :]


def _skip(skip: AmpSkip) -> list[Part]:
    kinds = (("NaN", skip.nan), ("+Inf", skip.posinf), ("-Inf", skip.neginf))
    values = " ".join(f"{word} {count(found)}" for word, found in kinds if found)
    if values and skip.numel:
        values += f" of {count(skip.numel)}"
    if skip.loss_is_finite is False:
        values += "; the loss was not finite"
    how_many = f"{skip.tensors:,}/{skip.measured:,}" if skip.measured else DASH
    return [
        (count(skip.step), "text"),
        (number(skip.scale, 6), "text"),
        (_tail(plain(skip.name)) or DASH, "strong"),
        (how_many, "warn" if skip.tensors else "dim"),
        (values or DASH, "bad" if values else "dim"),
    ]
