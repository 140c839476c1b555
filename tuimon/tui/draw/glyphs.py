"""The characters the screen is made of, in three sets, and which set a terminal can show."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class GlyphSet(msgspec.Struct, frozen=True):
    """One alphabet. Every glyph is one cell wide."""

    name: str
    box: str = "╭╮╰╯─│"  # corners, horizontal, vertical
    tick: str = "┤"
    dash: str = "┄"
    above: str = "▲"
    below: str = "▼"
    bar: str = "━"
    rail: str = "─"
    thumb: str = "┃"
    folded: str = "▸"
    unfolded: str = "▾"
    info: str = "•"
    warning: str = "▲"
    critical: str = "✖"
    live: str = "●"
    hollow: str = "○"
    paused: str = "‖"
    again: str = "↻"
    spark: str = "▁▂▃▄▅▆▇█"
    ellipsis: str = "…"
    arrow: str = "→"
    no_data: str = "·"
    missing: str = "–"
    skip: str = "×"
    mark: str = "◆"
    shade: str = " ░▒▓█"

    @property
    def ascii_only(self) -> bool:
        """Whether nothing above code point 127 may reach the terminal."""
        return self.name == "ascii"


BRAILLE = GlyphSet("braille")

# Everything here is in code page 437, so that a Linux console font can draw it.
BLOCK = GlyphSet(
    "block",
    box="┌┐└┘─│",
    dash="-",
    bar="█",
    rail="░",
    thumb="█",
    folded="►",
    unfolded="▼",
    critical="X",
    live="■",
    paused="║",
    again="◄",
    spark="__▄▄▄███",
    ellipsis="~",
    missing="-",
    skip="x",
    mark="♦",
)

ASCII = GlyphSet(
    "ascii",
    box="++++-|",
    tick="+",
    dash="-",
    above="^",
    below="v",
    bar="#",
    rail="-",
    thumb="#",
    folded=">",
    unfolded="v",
    info="*",
    warning="!",
    critical="X",
    live="*",
    hollow="o",
    paused="=",
    again="~",
    spark="_.-=+*#@",
    ellipsis="~",
    arrow=">",
    no_data=":",
    missing="-",
    skip="x",
    mark="@",
    shade=" .:*#",
)

# They have one font of their own, whatever the locale of the host.
_TERMINALS_OF_DEC = ("vt1", "vt2", "vt3", "vt4", "vt5")

SETS = {glyphs.name: glyphs for glyphs in (BRAILLE, BLOCK, ASCII)}
ORDER = tuple(SETS)

_TO_ASCII = str.maketrans(
    {
        **dict.fromkeys("▏▎▍▌▋▊▉█", "#"),  # bars that programs print
        "…": "~",
        "–": "-",
        "—": "-",
        "·": ".",
        "×": "x",
        "µ": "u",
        "°": " ",
        "÷": "/",
        "≈": "~",
        "→": ">",
        "←": "<",
        "↑": "^",
        "↓": "v",
        "±": "~",
        "²": "2",
        "≤": "<",
        "≥": ">",
        "’": "'",
        "“": '"',
        "”": '"',
    }
)


def to_ascii(text: str) -> str:
    """The nearest text below code point 128, of the same length."""
    if text.isascii():
        return text
    return text.translate(_TO_ASCII).encode("ascii", "replace").decode("ascii")


# What sentences hold that no font of code page 437 has.
_TO_CONSOLE = str.maketrans({"…": "~", "–": "-", "—": "-", "×": "x", "’": "'", "“": '"', "”": '"'})


def spelt(glyphs: GlyphSet, text: str) -> str:
    """A text with the characters that an alphabet has, of the same length."""
    if glyphs.ascii_only:
        return to_ascii(text)
    return text.translate(_TO_CONSOLE) if glyphs is BLOCK and not text.isascii() else text


def set_for(environ: Mapping[str, str]) -> GlyphSet:
    """The richest set that the locale and TERM promise to show."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    if "utf-8" not in locale.lower() and "utf8" not in locale.lower():
        return ASCII
    term = environ.get("TERM", "")
    if term.startswith(_TERMINALS_OF_DEC):
        return ASCII
    return BLOCK if term in ("linux", "") else BRAILLE
