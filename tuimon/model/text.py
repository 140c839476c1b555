"""Text that came from data, made safe for a terminal.

Names, exception messages and log lines are written by strangers; an escape sequence in one of
them must not reach the terminal.
"""

from __future__ import annotations

import unicodedata

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def plain(text: str, limit: int = 2000) -> str:
    """Return one line without control, format or bidirectional characters.

    Line ends and tabs become a blank, everything else unsafe becomes U+FFFD; longer text is cut
    with an ellipsis.
    """
    clipped = text[: limit + 1]
    if clipped.isascii() and clipped.isprintable():
        safe = clipped
    else:
        safe = "".join(_safe(char) for char in clipped)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def _safe(char: str) -> str:
    if char in "\n\r\t":
        return " "
    return _REPLACEMENT if unicodedata.category(char) in _UNSAFE else char
