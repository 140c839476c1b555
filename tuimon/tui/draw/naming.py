"""Dotted names in few cells, so that rows stay different where there is no room for all of it."""

from __future__ import annotations

import re

from rich.cells import cell_len

from tuimon.tui.draw.theme import Look

# The first letter of each word, and all digits: c_attn is ca, and fc2 stays f2.
_INITIALS = re.compile(r"\d+|(?<![^\W\d_])[^\W\d_]")


def brief(look: Look, name: str, width: int) -> str:
    """At most `width` cells of a dotted name.

    Modules become their initials, the outermost first; numbers and the last word stay. What is
    still too long is cut in the middle: both ends tell.
    """
    parts = name.split(".")
    for at, part in enumerate(parts[:-1]):
        if cell_len(".".join(parts)) <= width:
            break
        parts[at] = "".join(_INITIALS.findall(part)) or part
    short = ".".join(parts)
    if cell_len(short) <= width or width < 2:
        return short
    head = (width - 1) // 2
    return short[:head] + look.glyphs.ellipsis + short[len(short) - (width - 1 - head) :]
