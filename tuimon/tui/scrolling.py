"""Where a person is in a list or a text: the line at the top, the selected entry, the end."""

from __future__ import annotations

import msgspec

FAR = 1 << 60


class Scroll(msgspec.Struct):
    """A place in rows that a panel draws; the panel settles it, the keys move it.

    Attributes:
        top: first row that is shown.
        cursor: selected row, where a panel has one.
        is_at_end: follows what is new; whoever moves up leaves it.
        filter: only rows with this in them.
        side: cells that long lines are moved to the left.
        anchor: identity of the selected entry; None where it is the newest one.
    """

    top: int = 0
    cursor: int = 0
    is_at_end: bool = True
    filter: str = ""
    side: int = 0
    anchor: object = None

    def move(self, rows: int) -> None:
        """Go so many rows down, or up."""
        self.anchor = None
        self.is_at_end = rows >= FAR
        self.top = max(0, self.top + rows)
        self.cursor = max(0, self.cursor + rows)

    def settle(self, total: int, room: int) -> int:
        """The first row to show of a text; whoever reaches its end follows it."""
        last = max(0, total - room)
        self.top = last if self.is_at_end else max(0, min(self.top, last))
        self.is_at_end |= self.top >= last
        return self.top

    def settle_cursor(self, total: int, room: int) -> int:
        """The first row to show of a list, so that the selected one is in sight."""
        self.cursor = max(0, min(self.cursor, total - 1))
        self.top = max(0, min(self.top, self.cursor, total - room))
        self.top = max(self.top, self.cursor - room + 1)
        return self.top
