"""Colours and styles: four palettes, sixteen colours, none; a colour belongs to a metric's name.

Every colour of the palettes is an exact xterm-256 entry, so that the picture is the same with and
without true colour.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec
from rich.style import Style

from tuimon.tui.draw.glyphs import BRAILLE, GlyphSet

FULL = "full"
SIXTEEN = "16"
NONE = "none"

# In the heat map what falls below its usual is quiet, for a training that converges does so; what
# rises stands out, and what is not finite most of all.
_DARK = {
    "bg": "#121212", "raised": "#1c1c1c", "selected": "#303030", "line": "#4e4e4e",
    "focus": "#5fafd7", "text": "#d0d0d0", "dim": "#8a8a8a", "faint": "#6c6c6c",
    "strong": "#ffffff", "key": "#87d7ff", "ok": "#5fd7af", "warn": "#ffd75f",
    "bad": "#ff5f5f", "on_badge": "#ffffff", "nan": "#d70000", "inf": "#8700d7",
    "zero": "#8a8a8a", "zero_bg": "#303030",
    "level1": "#5f87af", "level2": "#005f87", "level3": "#00005f", "level4": "#262626",
    "level5": "#875f00", "level6": "#d78700", "level7": "#ffd700", "level8": "#ffffd7",
    "on_level": "#000000",
}  # fmt: skip
_LIGHT = _DARK | {
    "bg": "#ffffff", "raised": "#eeeeee", "selected": "#d0d0d0", "line": "#b2b2b2",
    "focus": "#005faf", "text": "#303030", "dim": "#6c6c6c", "faint": "#8a8a8a",
    "strong": "#000000", "key": "#005faf", "ok": "#00875f", "warn": "#875f00",
    "bad": "#d70000", "zero_bg": "#d0d0d0", "zero": "#4e4e4e",
    "level1": "#5f87af", "level2": "#87afd7", "level3": "#d7d7ff", "level4": "#eeeeee",
    "level5": "#ffd787", "level6": "#ffaf00", "level7": "#d75f00", "level8": "#5f0000",
    "on_level": "#ffffff",
}  # fmt: skip
_CONTRAST = _DARK | {
    "bg": "#000000", "raised": "#000000", "selected": "#444444", "line": "#9e9e9e",
    "focus": "#00ffff", "text": "#ffffff", "dim": "#d0d0d0", "faint": "#b2b2b2",
    "key": "#00ffff", "ok": "#00ff87", "warn": "#ffff00", "bad": "#ff5f5f",
    "nan": "#ff0000", "inf": "#af00ff", "level4": "#000000", "zero": "#ffffff",
    "level1": "#87afd7", "level2": "#5f87af", "level3": "#005f87",
}  # fmt: skip
# Told apart by brightness and by blue against orange, which every kind of colour blindness keeps;
# after Okabe and Ito, Color Universal Design, in the nearest colours of a terminal.
_COLOUR_BLIND = _DARK | {
    "focus": "#5fafff", "key": "#87afff", "ok": "#5fafff", "warn": "#ffff87", "bad": "#ffaf00",
    "nan": "#d75f00", "inf": "#875faf", "on_badge": "#ffffff",
    "level1": "#5f87af", "level2": "#005f87", "level3": "#00005f", "level4": "#262626",
    "level5": "#5f5f00", "level6": "#afaf00", "level7": "#ffff00", "level8": "#ffffd7",
}  # fmt: skip
PALETTES = {
    "dark": _DARK,
    "light": _LIGHT,
    "high-contrast": _CONTRAST,
    "colour-blind": _COLOUR_BLIND,
}
ORDER = tuple(PALETTES)

# With sixteen colours hue alone says nothing: heat-map cells carry their glyph ramp as well.
_SIXTEEN = {
    "bg": "default", "raised": "default", "selected": "bright_black", "line": "bright_black",
    "focus": "cyan", "text": "default", "dim": "bright_black", "faint": "bright_black",
    "strong": "default", "key": "cyan", "ok": "green", "warn": "yellow",
    "bad": "bright_red", "on_badge": "bright_white", "nan": "red", "inf": "magenta",
    "zero": "white", "zero_bg": "bright_black",
    "level1": "cyan", "level2": "blue", "level3": "blue", "level4": "default",
    "level5": "yellow", "level6": "yellow", "level7": "bright_yellow",
    "level8": "bright_white", "on_level": "black",
}  # fmt: skip

# (envelope, mean): the mean is the one that stands out against the background.
_SERIES_DARK = (
    ("#5f87af", "#afd7ff"), ("#af5f00", "#ffd787"), ("#5f8700", "#afd75f"),
    ("#875faf", "#d7afff"), ("#00875f", "#87d7af"), ("#af5f87", "#ffafd7"),
)  # fmt: skip
_SERIES_LIGHT = (
    ("#87afd7", "#005faf"), ("#ffaf5f", "#875f00"), ("#afd787", "#5f8700"),
    ("#d7afff", "#5f00af"), ("#87d7af", "#005f5f"), ("#ffafd7", "#af005f"),
)  # fmt: skip
_SERIES_SIXTEEN = (
    ("blue", "bright_cyan"), ("yellow", "bright_yellow"), ("green", "bright_green"),
    ("magenta", "bright_magenta"), ("cyan", "bright_cyan"), ("red", "bright_red"),
)  # fmt: skip
# Blue, orange, yellow, violet, grey, white: no red beside a green.
_SERIES_COLOUR_BLIND = (
    ("#5f87af", "#87d7ff"), ("#af5f00", "#ffaf5f"), ("#878700", "#ffff87"),
    ("#875faf", "#d7afff"), ("#767676", "#d0d0d0"), ("#005f87", "#5fafff"),
)  # fmt: skip
_SERIES = {
    "light": _SERIES_LIGHT,
    "colour-blind": _SERIES_COLOUR_BLIND,
}
_FIXED = {
    "loss": 0, "grad_norm": 1, "lr": 2, "loss_scale": 3, "step_s": 4, "grad_norm_clipped": 5,
}  # fmt: skip


class Look(msgspec.Struct):
    """What a picture is drawn with: palette, number of colours and glyphs."""

    theme: str = "dark"
    colours: str = FULL
    glyphs: GlyphSet = BRAILLE
    _styles: dict[tuple[str, str, bool], Style] = msgspec.field(default_factory=dict)

    @property
    def stamp(self) -> tuple[str, str, str]:
        """Changes when every panel must be drawn anew."""
        return (self.theme, self.colours, self.glyphs.name)

    @property
    def has_ramp(self) -> bool:
        """Whether heat-map levels need a glyph because colour cannot tell them apart."""
        return self.colours != FULL

    def colour(self, name: str) -> str | None:
        """The colour behind a palette name; a name that is a colour stands for itself."""
        if self.colours == NONE:
            return None
        palette = _SIXTEEN if self.colours == SIXTEEN else PALETTES[self.theme]
        return palette.get(name, name)

    def style(self, fg: str = "text", bg: str = "", *, bold: bool = False) -> Style:
        """A style by palette names; without colour a background becomes reversed text."""
        key = (fg, bg, bold)
        found = self._styles.get(key)
        if found is None:
            found = self._styles[key] = self._make(fg, bg, bold)
        return found

    def _make(self, fg: str, bg: str, bold: bool) -> Style:
        if self.colours == NONE:
            badge = bg in ("nan", "inf", "warn", "bad", "ok", "selected", "zero_bg", "key")
            stands_out = bold or fg in ("strong", "focus")
            return Style(bold=stands_out or None, reverse=badge or None)
        # A palette is made for its own background; sixteen colours go with the terminal's.
        back = self.colour(bg or "bg")
        return Style(
            color=self.colour(fg),
            bgcolor=None if back == "default" else back,
            bold=bold or None,
        )

    def series(self, name: str) -> tuple[str, str]:
        """(envelope, mean) colours of a metric: the same in every picture and run."""
        pairs = _SERIES.get(self.theme, _SERIES_DARK)
        if self.colours == SIXTEEN:
            pairs = _SERIES_SIXTEEN
        last = name.rsplit("/", 1)[-1]
        fallback = zlib.crc32(name.encode("utf-8", "replace")) % len(pairs)
        return pairs[_FIXED.get(last, fallback)]

    def set_theme(self, theme: str) -> None:
        """Change the palette; every cached style goes."""
        self.theme = theme
        self._styles.clear()


def colours_for(environ: Mapping[str, str]) -> str:
    """How many colours the environment allows: NO_COLOR wins, then TERM and COLORTERM."""
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR") or term in ("dumb", "vt100", "vt102", "vt220"):
        return NONE
    if environ.get("COLORTERM") in ("truecolor", "24bit") or "256" in term or "direct" in term:
        return FULL
    modern = ("kitty", "alacritty", "ghostty", "wezterm", "foot")
    return FULL if any(word in term for word in modern) else SIXTEEN
