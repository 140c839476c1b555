"""What one cause is explained by."""

from __future__ import annotations

import msgspec


class Explanation(msgspec.Struct, frozen=True):
    """One cause for a person who meets it.

    Attributes:
        title: the cause in a few words.
        what: what it is, and how it shows.
        why: why it happens.
        remedy: what to do, the smallest change first.
        code: the change as Python for the reader's own loop; "" where there is none to show.
    """

    title: str
    what: str
    why: str
    remedy: str
    code: str = ""
