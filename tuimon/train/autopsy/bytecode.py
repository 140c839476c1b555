"""What a code object says of itself without being run: loops, stores, and where jumps can lead.

Reads the bytecode of Python 3.11; `is_readable` tells whether that is what runs.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

VERSION = 3, 11
MAX_INSTRUCTIONS = 20_000  # of one function

_STORES = frozenset(
    ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF",
     "DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL", "DELETE_DEREF")
)  # fmt: skip
_ENDS = frozenset(("RETURN_VALUE", "RAISE_VARARGS", "RERAISE"))
_ALWAYS = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"))


def is_readable() -> bool:
    """Whether this Python's bytecode is the one that is known here."""
    return sys.implementation.name == "cpython" and sys.version_info[:2] == VERSION


class CannotReplay(Exception):
    """The code does something that is not followed; its text is for a person."""


class Loop(NamedTuple):
    """Indices of the first and last instruction of a loop."""

    head: int
    end: int


class Join(NamedTuple):
    """Where two branches meet, and what they do to the stack until then."""

    meeting: int
    pops: int
    pushes: int


@functools.lru_cache(maxsize=64)
def read(code: CodeType) -> Code:
    """What is known of a code object; kept for those met last."""
    return Code(code)


class Code:
    """One code object.

    Attributes:
        instructions: without caches and extensions.
        loops: every loop; those nested are in it too.
    """

    def __init__(self, code: CodeType) -> None:
        if len(code.co_code) > 2 * MAX_INSTRUCTIONS * 4:
            raise CannotReplay("a function of the script is too long to be followed")
        self.instructions: list[dis.Instruction] = []
        self._index: dict[int, int] = {}
        for each in dis.get_instructions(code):
            self._index[each.offset] = len(self.instructions)
            if each.opname != "EXTENDED_ARG":  # its argument is that of the next one already
                self.instructions.append(each)
        self._stores: dict[str, list[int]] = {}
        self._attributes: dict[str, list[int]] = {}
        ends: dict[int, int] = {}
        for i, each in enumerate(self.instructions):
            if each.opname in _STORES:
                self._stores.setdefault(each.argval, []).append(i)
            elif each.opname == "STORE_ATTR":
                self._attributes.setdefault(each.argval, []).append(i)
            elif "JUMP_BACKWARD" in each.opname and "NO_INTERRUPT" not in each.opname:
                head = self._index[each.argval]
                ends[head] = max(ends.get(head, 0), i)
        self.loops = [Loop(head, end) for head, end in sorted(ends.items())]
        self.returns = [i for i, e in enumerate(self.instructions) if e.opname == "RETURN_VALUE"]

    def index_at(self, offset: int) -> int:
        """The instruction at an offset, or the one whose caches lie there."""
        while offset not in self._index and offset > 0:
            offset -= 2
        return self._index.get(offset, 0)

    def target(self, index: int) -> int:
        """Where the jump at an index leads."""
        return self._index[self.instructions[index].argval]

    def stored_between(self, first: int, end: int) -> set[str]:
        """Names that are stored by instructions in [first, end)."""
        return {name for name, at in self._stores.items() if any(first <= i < end for i in at)}

    def around(self, index: int) -> list[Loop]:
        """The loops that enclose an instruction, the innermost first."""
        found = [loop for loop in self.loops if loop.head <= index <= loop.end]
        return sorted(found, key=lambda loop: loop.head, reverse=True)

    def is_last_store(self, name: str, index: int, last: int) -> bool:
        """Whether what `name` holds after an instruction is what it holds at `last`."""
        return self._is_last(self._stores.get(name, ()), index, last)

    def is_last_attribute(self, name: str, index: int, last: int) -> bool:
        """The same of an attribute, as far as this function stores it."""
        return self._is_last(self._attributes.get(name, ()), index, last)

    def _is_last(self, stores: Sequence[int], index: int, last: int) -> bool:
        if any(index < each < last for each in stores):
            return False
        for loop in self.loops:
            is_in, has_last = loop.head <= index <= loop.end, loop.head <= last <= loop.end
            # An inner loop that is over may have stored it again after this; one that is still
            # going on may have stored it in an earlier round.
            if is_in != has_last and any(loop.head <= each <= loop.end for each in stores):
                return False
        return True

    def reached(self, index: int, barred: frozenset[int] | None = None) -> set[int]:
        """Instructions that can follow.

        Args:
            index: where to begin.
            barred: no way leads back to these; None: no way leads back at all.
        """
        found: set[int] = set()
        waiting = [index]
        while waiting:
            i = waiting.pop()
            if i not in found and i < len(self.instructions):
                found.add(i)
                waiting += [
                    each
                    for each in self.following(i)
                    if each > i or (barred is not None and each not in barred)
                ]
        return found

    def following(self, index: int) -> list[int]:
        """Instructions that can come right after one."""
        name = self.instructions[index].opname
        if name in _ENDS:
            return []
        if name in _ALWAYS:
            return [self.target(index)]
        if "JUMP" in name or name in ("FOR_ITER", "SEND"):
            return [index + 1, self.target(index)]
        return [index + 1]

    def only_way(self, index: int, goals: list[int], barred: frozenset[int]) -> int | None:
        """The successor of a jump that alone leads to a goal; None where both do.

        Raises:
            CannotReplay: neither does.
        """
        ways = [
            way
            for way in self.following(index)
            if way not in barred and not self.reached(way, barred).isdisjoint(goals)
        ]
        if not ways:
            raise CannotReplay("the way through a branch was not found")
        return ways[0] if len(ways) == 1 else None

    def join(self, index: int) -> Join | None:
        """Where both ways of a jump meet again; None where they do not.

        The stack is counted from after the jump, with its condition taken off.
        """
        first, second = self.reached(index + 1), self.reached(self.target(index))
        common = first & second
        if not common:
            return None
        meeting = min(common)
        kept = 1 if self.instructions[index].opname.endswith("_OR_POP") else 0
        for way, depth in ((index + 1, 0), (self.target(index), kept)):
            found = self._effect(way, meeting, depth)
            if found is not None:
                lowest, depth = found
                return Join(meeting, -lowest, depth - lowest)
        return None

    def _effect(self, index: int, end: int, depth: int) -> tuple[int, int] | None:
        """(lowest, final) height of the stack on the straight way; None where that ends."""
        lowest = min(0, depth)
        while index != end:
            each = self.instructions[index]
            if each.opname in _ENDS or index > end:
                return None
            jumps = each.opname in _ALWAYS
            depth += dis.stack_effect(each.opcode, each.arg, jump=jumps)
            lowest = min(lowest, depth)
            following = self.target(index) if jumps else index + 1
            if following <= index:
                return None
            index = following
        return lowest, depth
