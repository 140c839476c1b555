"""The tree of layers by module path: visible rows and the parameters each stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]

FIRST_BAD = "first bad"
ORDERS = ("tree", "worst", FIRST_BAD, "norm", "name")

OPEN_BY_DEFAULT_ROWS = 40  # the tree opens level by level while it stays shorter than this


class TreeRow(msgspec.Struct, frozen=True):
    """One visible row.

    Attributes:
        path: full dotted path; the identity of the row.
        label: what is printed, without its parent's path.
        depth: indentation.
        members: indices of the parameters below (itself, for a leaf).
        is_open: None for a leaf.
    """

    path: str
    label: str
    depth: int
    members: tuple[int, ...]
    is_open: bool | None = None


class _Node(msgspec.Struct):
    path: str
    label: str
    children: dict[str, _Node]
    leaf: int | None = None
    members: tuple[int, ...] = ()


class LayerTree:
    """Folding, filtering and finding. Written by the keys, read by the heat map."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.filter = ""
        self.only_bad = False
        self.order = ORDERS[0]
        self._ranking: Indices | None = None
        self._leaves: list[TreeRow] = []
        self._root = _Node("", "", {})
        self._open: set[str] = set()
        self._bad: Bools = np.zeros(0, np.bool_)
        self._rows: list[TreeRow] | None = None
        self._longest: int | None = None
        self.version = 0

    def set_names(self, names: Sequence[str]) -> None:
        """Take a new layer table; folds of paths that still exist stay as they are."""
        fresh = tuple(names)
        if fresh == self.names:
            return
        first = not self.names
        self.names = fresh
        self._root = _grow(fresh)
        self._bad = np.zeros(len(fresh), np.bool_)
        self._ranking = None
        # Made once: the heat map knows a group again by its identity.
        self._leaves = [TreeRow(name, name, 0, (index,)) for index, name in enumerate(fresh)]
        if first:
            self._open = _first_look(self._root)
        self._changed()

    def set_bad(self, bad: Bools) -> None:
        """Which parameters ever held a non-finite gradient; matters to `only_bad` alone."""
        if len(bad) == len(self.names) and not np.array_equal(bad, self._bad):
            self._bad = bad.copy()
            if self.only_bad:
                self._changed()

    def set_filter(self, pattern: str) -> None:
        """Show only parameters whose name matches a regular expression (or, failing that, text)."""
        if pattern != self.filter:
            self.filter = pattern
            self._changed()

    def set_only_bad(self, wanted: bool) -> None:
        """Show only parameters that ever were non-finite."""
        self.only_bad = wanted
        self._changed()

    def set_order(self, order: str, ranking: Indices | None = None) -> None:
        """Sort the parameters: `ranking` holds their indices, the first one at the top."""
        same = order == self.order and (
            ranking is self._ranking
            or (
                ranking is not None
                and self._ranking is not None
                and np.array_equal(ranking, self._ranking)
            )
        )
        if not same:
            self.order, self._ranking = order, ranking
            self._changed()

    @property
    def is_flat(self) -> bool:
        """Whether the rows are parameters only, without the modules above them."""
        return bool(self.filter) or self.only_bad or self.order != ORDERS[0]

    def place_of(self, path: str) -> int | None:
        """The row of a path; None where it is not shown."""
        return next((at for at, row in enumerate(self.rows()) if row.path == path), None)

    def fold(self, path: str, *, open_it: bool) -> None:
        """Fold or unfold a row."""
        if open_it:
            self._open.add(path)
        else:
            self._open.discard(path)
        self._changed()

    def reveal(self, member: int) -> int:
        """Unfold everything above a parameter and return its row."""
        if self.is_flat:
            return self.place_of(self.names[member]) or 0
        node = self._root
        while node.leaf is None:
            node = next(child for child in node.children.values() if member in set(child.members))
            if node.leaf is None:
                self._open.add(node.path)
        self._changed()
        return next((index for index, row in enumerate(self.rows()) if row.members == (member,)), 0)

    def parent_of(self, index: int) -> int:
        """The row that folds this one away; the row itself at the outermost level."""
        rows = self.rows()
        for above in range(index - 1, -1, -1):
            if rows[above].depth < rows[index].depth:
                return above
        return index

    def rows(self) -> list[TreeRow]:
        """The visible rows, top to bottom."""
        if self._rows is None:
            self._rows = self._flat() if self.is_flat else self._unfolded()
        return self._rows

    @property
    def longest(self) -> int:
        """Cells of the longest name in the visible rows, with its indentation."""
        if self._longest is None:
            self._longest = max((2 * row.depth + len(row.label) for row in self.rows()), default=0)
        return self._longest

    def _changed(self) -> None:
        self._rows = self._longest = None
        self.version += 1

    def _flat(self) -> list[TreeRow]:
        rows = self._leaves
        if self._ranking is not None and self.order != ORDERS[0]:
            rows = [rows[index] for index in self._ranking.tolist()]
        if self.only_bad:
            rows = [row for row in rows if self._bad[row.members[0]]]
        if not self.filter:
            return list(rows)
        try:
            matches = re.compile(self.filter, re.IGNORECASE).search
        except re.error:
            wanted = self.filter.lower()
            return [row for row in rows if wanted in row.path.lower()]
        return [row for row in rows if matches(row.path)]

    def _unfolded(self) -> list[TreeRow]:
        rows: list[TreeRow] = []
        stack = [(child, 0) for child in reversed(self._root.children.values())]
        while stack:
            node, depth = stack.pop()
            if node.leaf is not None and not node.children:
                rows.append(TreeRow(node.path, node.label, depth, node.members))
                continue
            is_open = node.path in self._open
            rows.append(TreeRow(node.path, node.label, depth, node.members, is_open))
            if is_open:
                stack += [(child, depth + 1) for child in reversed(node.children.values())]
        return rows


def _grow(names: Sequence[str]) -> _Node:
    root = _Node("", "", {})
    for index, name in enumerate(names):
        node = root
        path = ""
        for part in name.split("."):
            path = f"{path}.{part}" if path else part
            label = path.rsplit(".", 2)[-2] + "." + part if part.isdigit() and "." in path else part
            node = node.children.setdefault(part, _Node(path, label, {}))
        if node.leaf is None and not node.children:
            node.leaf = index
        else:  # a parameter whose name is another's prefix: keep it as a child of its own
            node.children.setdefault("", _Node(f"{path}.", "(itself)", {}, index))
    _settle(root)
    return root


def _settle(node: _Node) -> None:
    """Join chains of single children into one label and collect members, deepest first."""
    order = [node]
    for item in order:
        order.extend(item.children.values())
    for item in reversed(order):
        if item.leaf is not None and item.children:
            item.children = {"": _Node(f"{item.path}.", "(itself)", {}, item.leaf)} | item.children
            item.leaf = None
            item.children[""].members = (item.children[""].leaf or 0,)
        if item.leaf is not None:
            item.members = (item.leaf,)
            continue
        for key, child in list(item.children.items()):
            if child.leaf is None and len(child.children) == 1:
                (only,) = child.children.values()
                only.label = f"{child.label}.{only.label}"
                item.children[key] = only
        item.members = tuple(index for child in item.children.values() for index in child.members)


def _first_look(root: _Node) -> set[str]:
    """Open whole levels while the tree stays short."""
    opened: set[str] = set()
    level = list(root.children.values())
    shown = len(level)
    while level:
        below = [child for node in level for child in node.children.values()]
        inner = [node.path for node in level if node.children]
        if not below or shown + len(below) > OPEN_BY_DEFAULT_ROWS:
            break
        opened.update(inner)
        shown += len(below)
        level = below
    return opened
