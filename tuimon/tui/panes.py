"""Sizes of panes that the person has changed, applied to any layout. Pure: boxes in, boxes out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

MIN_PANE_ROWS, MIN_PANE_COLUMNS = 4, 24
STEP_ROWS, STEP_COLUMNS = 1, 4
_FIXED = ("header", "alert", "footer", "compact", "layerline", "more", "tiny")


class Box(msgspec.Struct, frozen=True):
    """Where a panel lies."""

    panel: str
    x: int
    y: int
    width: int
    height: int

    @property
    def right(self) -> int:
        return self.x + self.width

    @property
    def bottom(self) -> int:
        return self.y + self.height


class Sizes(msgspec.Struct):
    """By screen and panel: columns and rows more than the layout gives it."""

    changes: dict[str, dict[str, tuple[int, int]]] = msgspec.field(default_factory=dict)

    def change(self, screen: str, panel: str, columns: int, rows: int) -> None:
        """Make a panel of a screen larger or smaller."""
        of_screen = self.changes.setdefault(screen, {})
        before = of_screen.get(panel, (0, 0))
        of_screen[panel] = (before[0] + columns, before[1] + rows)

    def forget(self, screen: str) -> None:
        """Let a screen be as it was laid out."""
        self.changes.pop(screen, None)


def resized(boxes: list[Box], changes: dict[str, tuple[int, int]]) -> list[Box]:
    """The boxes with the changes, as far as their neighbours have room."""
    for panel, (columns, rows) in changes.items():
        boxes = _taller(boxes, panel, rows) if rows else boxes
        boxes = _wider(boxes, panel, columns) if columns else boxes
    return boxes


def grows_into(boxes: list[Box], panel: str) -> tuple[bool, bool]:
    """Whether a panel has a neighbour beside it, and one above or below."""
    box = _of(boxes, panel)
    if box is None:
        return (False, False)
    beside = any(each.x == box.right or each.right == box.x for each in _movable(boxes))
    return (beside, _pair(boxes, box) is not None)


def neighbour_before(boxes: list[Box], panel: str, *, vertical: bool) -> str | None:
    """The panel whose end is this one's beginning: above it, or at its left."""
    box = _of(boxes, panel)
    if box is None:
        return None
    for each in _movable(boxes):
        if vertical and each.bottom == box.y and each.x == box.x:
            return each.panel
        if not vertical and each.right == box.x and each.y <= box.y < each.bottom:
            return each.panel
    return None


def _movable(boxes: Iterable[Box]) -> list[Box]:
    return [box for box in boxes if box.panel not in _FIXED]


def _of(boxes: list[Box], panel: str) -> Box | None:
    return next((box for box in _movable(boxes) if box.panel == panel), None)


def _pair(boxes: list[Box], box: Box) -> tuple[Box, Box] | None:
    """The panel and the one it shares an edge with, the upper one first."""
    column = [each for each in _movable(boxes) if (each.x, each.width) == (box.x, box.width)]
    below = next((each for each in column if each.y == box.bottom), None)
    above = next((each for each in column if each.bottom == box.y), None)
    if below is not None:
        return box, below
    return None if above is None else (above, box)


def _taller(boxes: list[Box], panel: str, rows: int) -> list[Box]:
    box = _of(boxes, panel)
    pair = None if box is None else _pair(boxes, box)
    if box is None or pair is None:
        return boxes
    upper, lower = pair
    moved = rows if upper is box else -rows
    moved = max(MIN_PANE_ROWS - upper.height, min(moved, lower.height - MIN_PANE_ROWS))
    if upper.height < MIN_PANE_ROWS or lower.height < MIN_PANE_ROWS:
        return boxes
    changed = {
        upper.panel: replace(upper, height=upper.height + moved),
        lower.panel: replace(lower, y=lower.y + moved, height=lower.height - moved),
    }
    return [changed.get(each.panel, each) for each in boxes]


def _wider(boxes: list[Box], panel: str, columns: int) -> list[Box]:
    """Move the edge between two columns, for every panel that ends or begins there."""
    box = _of(boxes, panel)
    if box is None:
        return boxes
    body = _movable(boxes)
    is_left = any(each.x == box.right for each in body)
    edge, moved = (box.right, columns) if is_left else (box.x, -columns)
    left = [each for each in body if each.right == edge]
    right = [each for each in body if each.x == edge]
    if not left or not right:
        return boxes
    room_left = min(each.width for each in left) - MIN_PANE_COLUMNS
    room_right = min(each.width for each in right) - MIN_PANE_COLUMNS
    if room_left < 0 or room_right < 0:
        return boxes
    moved = max(-room_left, min(moved, room_right))
    changed = {each.panel: replace(each, width=each.width + moved) for each in left}
    changed |= {
        each.panel: replace(each, x=each.x + moved, width=each.width - moved) for each in right
    }
    return [changed.get(each.panel, each) for each in boxes]
