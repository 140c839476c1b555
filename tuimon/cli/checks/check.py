"""One thing that the doctor looked at, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, BAD = "ok", "warn", "bad"
LEVELS = (OK, WARN, BAD)


@dataclass(frozen=True)
class Check:
    """A finding about this host.

    Attributes:
        topic: "host", "terminal", "runs" or "run".
        name: what was looked at.
        level: "ok", "warn" or "bad".
        said: what there is.
        todo: what helps; "" where nothing has to be done.
    """

    topic: str
    name: str
    level: str
    said: str
    todo: str = ""


def worst(checks: list[Check]) -> str:
    """The worst level of several."""
    return max((each.level for each in checks), key=LEVELS.index, default=OK)
