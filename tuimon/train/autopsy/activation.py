"""One function that a replay follows: its stack, and where its branches lead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dis import Instruction
from typing import TYPE_CHECKING, Any

from tuimon.train.autopsy import permits
from tuimon.train.autopsy.bytecode import CannotReplay
from tuimon.train.autopsy.permits import is_plain
from tuimon.train.autopsy.shadow import NULL, UNKNOWN, Scope
from tuimon.train.autopsy.sites import Place

if TYPE_CHECKING:
    from tuimon.train.autopsy.interpreter import Interpreter

_LOADS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")
Act = Callable[["Frame", Instruction], "int | None"]
ACTS: dict[str, Act] = {}


def act(*names: str) -> Callable[[Act], Act]:
    """Make a function what the instructions of these names do; it may say what follows."""

    def keep(function: Act) -> Act:
        ACTS.update(dict.fromkeys(names, function))
        return function

    return keep


class Exit:
    """What leaves a `with` block."""

    def __init__(self, context: AbstractContextManager[Any] | None) -> None:
        self.context = context


class Frame:
    """One function that is being followed.

    Attributes:
        stack: of values.
        index: the instruction that is being followed.
        keywords: names of the keyword arguments of the call that comes next.
    """

    def __init__(self, replay: Interpreter, scope: Scope, stack: list[Any] | None = None) -> None:
        self.replay = replay
        self.scope = scope
        self.stack: list[Any] = stack if stack is not None else []
        self.index = scope.start
        self.keywords: tuple[str, ...] = ()
        self.result: Any = None
        self.is_over = False
        self.opened: list[AbstractContextManager[Any]] = []
        last = scope.last
        around = scope.code.around(last) if last is not None else []
        self.heads = {loop.head: loop for loop in around if loop.head >= scope.start}
        self.barred = frozenset(loop.head for loop in around)
        self.goals = [last] if last is not None else scope.code.returns

    @property
    def place(self) -> Place:
        code = self.scope.raw
        positions = self.scope.code.instructions[self.index].positions
        line = None if positions is None else positions.lineno
        return Place(code.co_filename, line or code.co_firstlineno, code.co_name)

    def run(self) -> Any:
        """Follow it to its end."""
        code = self.scope.code
        try:
            while self.index != self.scope.last and not self.is_over:
                each = code.instructions[self.index]
                self.replay.step()
                if self.index in self.heads:
                    self._begin_round(self.index)
                does = ACTS.get(each.opname)
                if does is None:
                    raise CannotReplay(f"{each.opname} in the script's code is not followed")
                following = does(self, each)
                self.index = self.index + 1 if following is None else following
        except IndexError as error:
            raise CannotReplay("the script's code was not followed") from error
        finally:
            while self.opened:
                self.opened.pop().__exit__(None, None, None)
        self.scope.stack = self.stack
        return self.result

    def _begin_round(self, head: int) -> None:
        """A loop that goes on in the living frame: what it stores may be of an earlier round."""
        loop = self.heads[head]
        self.scope.forget(self.scope.code.stored_between(head, loop.end + 1), head)

    def pop(self) -> Any:
        return self.stack.pop()

    def pops(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise IndexError
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def taint(self, value: Any) -> None:
        """It is not known any longer what a value holds."""
        for name, known in self.scope.names.items():
            if known is value:
                self.scope.store(name, UNKNOWN, self.index)
        self.stack[:] = [UNKNOWN if each is value else each for each in self.stack]

    def truth(self, value: Any) -> bool | None:
        """Whether a value counts as true; None where that is unknown."""
        if value is UNKNOWN or not is_plain(value):
            return None
        found = self.replay.native(bool, value)
        return found if isinstance(found, bool) else None

    # --- branches ---------------------------------------------------------------------------------

    def branch(self, jumps: bool | None) -> int:
        """Where a conditional jump leads; past both ways where that is unknown."""
        code, target = self.scope.code, self.scope.code.target(self.index)
        way = code.only_way(self.index, self.goals, self.barred)
        if way is not None:
            return way
        if jumps is not None:
            return target if jumps else self.index + 1
        if target < self.index:  # the end of a loop: as if it were over
            self.skip(target, self.index)
            return self.index + 1
        join = code.join(self.index)
        if join is None:
            raise CannotReplay("a branch of the script's code depends on what is unknown")
        self.skip(self.index, join.meeting)
        self.pops(join.pops)
        self.stack += [UNKNOWN] * join.pushes
        return join.meeting

    def skip(self, first: int, end: int) -> None:
        """Instructions in [first, end) have run, or not, nobody knows how often."""
        code = self.scope.code
        names = set()
        writes = False
        for each in code.instructions[first:end]:
            if each.opname in _LOADS:
                names.add(each.argval)
            elif each.opname == "STORE_ATTR":
                self.replay.change(each.argval)
            writes = writes or _may_write(each)
        for name in names:
            value = self.scope.names.get(name, UNKNOWN)
            is_tensor = type(value) in permits.TENSORS
            if value is not UNKNOWN and (writes or not is_tensor) and self.replay.owns(value):
                self.replay.taint(value)
        self.scope.forget(code.stored_between(first, end), end)

    def call(self, count: int) -> None:
        """CALL with so many arguments on the stack."""
        args = self.pops(count)
        first, second = self.stack[-2:]
        del self.stack[-2:]
        names, self.keywords = self.keywords, ()
        kwargs = dict(zip(names, args[len(args) - len(names) :], strict=True)) if names else {}
        given = tuple(args[: len(args) - len(names)])
        if type(first) is Exit:
            self.leave(first)
            return self.push(None)
        if first is NULL:
            self.push(self.replay.call(second, given, kwargs))
        else:
            self.push(self.replay.call(first, (second, *given), kwargs))
        return None

    def leave(self, exit_: Exit) -> None:
        if exit_.context is not None and self.opened and self.opened[-1] is exit_.context:
            self.opened.pop().__exit__(None, None, None)


def _may_write(each: Instruction) -> bool:
    if each.opname == "STORE_SUBSCR":
        return True
    if each.opname == "BINARY_OP":
        return each.argrepr.endswith("=")
    return each.opname == "LOAD_METHOD" and str(each.argval).endswith("_")
