"""What instructions on names, operators and jumps do in a replay."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dis import Instruction
from typing import Any

from tuimon.train.autopsy import permits
from tuimon.train.autopsy.activation import ACTS, Frame, act
from tuimon.train.autopsy.bytecode import CannotReplay
from tuimon.train.autopsy.shadow import NULL, UNKNOWN, Each

_FILLS = ("LIST_APPEND", "SET_ADD", "MAP_ADD")
_ARITHMETIC = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "@": operator.matmul,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift, "+=": operator.iadd, "-=": operator.isub, "*=": operator.imul,
    "/=": operator.itruediv, "//=": operator.ifloordiv, "%=": operator.imod,
    "**=": operator.ipow, "@=": operator.imatmul, "&=": operator.iand, "|=": operator.ior,
    "^=": operator.ixor, "<<=": operator.ilshift, ">>=": operator.irshift,
}  # fmt: skip
_COMPARISONS = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_UNARY: dict[str, Callable[..., Any]] = {
    "UNARY_NEGATIVE": operator.neg, "UNARY_POSITIVE": operator.pos,
    "UNARY_INVERT": operator.invert,
}  # fmt: skip


def _number(each: Instruction) -> int:
    return each.arg or 0


@act("NOP", "RESUME", "MAKE_CELL", "COPY_FREE_VARS", "PRECALL",
      "SETUP_ANNOTATIONS")  # fmt: skip
def _nothing(f: Frame, each: Instruction) -> None: ...


@act("PUSH_NULL")
def _push_null(f: Frame, each: Instruction) -> None:
    f.push(NULL)


@act("LOAD_CONST")
def _load_const(f: Frame, each: Instruction) -> None:
    f.push(each.argval)


@act("LOAD_BUILD_CLASS", "LOAD_ASSERTION_ERROR", "LOAD_CLOSURE", "RETURN_GENERATOR")
def _load_unknown(f: Frame, each: Instruction) -> None:
    f.push(UNKNOWN)


@act("POP_TOP", "PRINT_EXPR")
def _pop_top(f: Frame, each: Instruction) -> None:
    f.pop()


@act("COPY")
def _copy(f: Frame, each: Instruction) -> None:
    f.push(f.stack[-_number(each)])


@act("SWAP")
def _swap(f: Frame, each: Instruction) -> None:
    at = -_number(each)
    f.stack[-1], f.stack[at] = f.stack[at], f.stack[-1]


# --- names ----------------------------------------------------------------------------------------


@act("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")
def _load_fast(f: Frame, each: Instruction) -> None:
    f.push(f.scope.load(each.argval))


@act("LOAD_NAME")
def _load_name(f: Frame, each: Instruction) -> None:
    f.push(f.scope.load_name(each.argval))


@act("LOAD_GLOBAL")
def _load_global(f: Frame, each: Instruction) -> None:
    if _number(each) & 1:
        f.push(NULL)
    f.push(f.scope.load_global(each.argval))


@act("STORE_FAST", "STORE_NAME", "STORE_DEREF")
def _store(f: Frame, each: Instruction) -> None:
    f.scope.store(each.argval, f.pop(), f.index)


@act("STORE_GLOBAL")
def _store_global(f: Frame, each: Instruction) -> None:
    f.scope.globals[each.argval] = f.pop()


@act("DELETE_FAST", "DELETE_NAME", "DELETE_DEREF")
def _delete(f: Frame, each: Instruction) -> None:
    f.scope.names[each.argval] = UNKNOWN


@act("LOAD_ATTR")
def _load_attr(f: Frame, each: Instruction) -> None:
    f.push(f.replay.attribute(f.pop(), each.argval))


@act("LOAD_METHOD")
def _load_method(f: Frame, each: Instruction) -> None:
    value = f.pop()
    f.push(NULL)
    f.push(f.replay.attribute(value, each.argval))


@act("STORE_ATTR")
def _store_attr(f: Frame, each: Instruction) -> None:
    value, owner = f.pops(2)
    scope, name = f.scope, each.argval
    is_live = scope.last is not None and scope.code.is_last_attribute(name, f.index, scope.last)
    if value is not UNKNOWN or not is_live:
        f.replay.store_attribute(owner, name, value)


@act("IMPORT_NAME")
def _import_name(f: Frame, each: Instruction) -> None:
    _, wanted = f.pops(2)
    name = each.argval if wanted else each.argval.partition(".")[0]
    f.push(sys.modules.get(name, UNKNOWN))


@act("IMPORT_FROM")
def _import_from(f: Frame, each: Instruction) -> None:
    f.push(f.replay.attribute(f.stack[-1], each.argval))


# --- operators ------------------------------------------------------------------------------------


@act("BINARY_OP")
def _binary_op(f: Frame, each: Instruction) -> None:
    left, right = f.pops(2)
    sign = each.argrepr
    writes = sign.endswith("=") and not _is_constant(left)
    if left is UNKNOWN:
        f.push(UNKNOWN)
    elif writes and not f.replay.owns(left):
        f.push(left)  # that was done when the script did it
    elif sign == "%" and isinstance(left, str):
        f.push(UNKNOWN)
    else:
        result = f.replay.native(_ARITHMETIC[sign], left, right)
        if result is UNKNOWN and writes:
            f.replay.taint(left)
        f.push(result)


def _is_constant(value: Any) -> bool:
    return type(value) in (int, float, bool, complex, str, bytes) or isinstance(value, tuple)


@act("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT")
def _unary(f: Frame, each: Instruction) -> None:
    f.push(f.replay.native(_UNARY[each.opname], f.pop()))


@act("UNARY_NOT")
def _not(f: Frame, each: Instruction) -> None:
    truth = f.truth(f.pop())
    f.push(UNKNOWN if truth is None else not truth)


@act("COMPARE_OP")
def _compare(f: Frame, each: Instruction) -> None:
    left, right = f.pops(2)
    f.push(f.replay.native(_COMPARISONS[each.argval], left, right))


@act("IS_OP")
def _is(f: Frame, each: Instruction) -> None:
    left, right = f.pops(2)
    if left is UNKNOWN or right is UNKNOWN:
        f.push(UNKNOWN)
    else:
        f.push((left is right) != bool(each.arg))


@act("CONTAINS_OP")
def _contains(f: Frame, each: Instruction) -> None:
    left, right = f.pops(2)
    if type(left) is str and isinstance(right, dict) and right is not UNKNOWN:
        f.push((dict.get(right, left, NULL) is not NULL) != bool(each.arg))
        return
    found = f.replay.native(operator.contains, right, left)
    f.push(found if found is UNKNOWN else found != bool(each.arg))


@act("BINARY_SUBSCR")
def _subscript(f: Frame, each: Instruction) -> None:
    value, key = f.pops(2)
    f.push(f.replay.item(value, key))


@act("STORE_SUBSCR")
def _store_subscript(f: Frame, each: Instruction) -> None:
    value, container, key = f.pops(3)
    if container is UNKNOWN or not f.replay.owns(container):
        return
    if type(container) in permits.TENSORS:
        if f.replay.native(operator.setitem, container, key, value) is UNKNOWN:
            f.replay.taint(container)
    elif type(key) in (int, str) and not (type(container) is list and key >= len(container)):
        container[key] = value
    else:
        f.replay.taint(container)


@act("DELETE_SUBSCR")
def _delete_subscript(f: Frame, each: Instruction) -> None:
    container, _ = f.pops(2)
    if container is not UNKNOWN and f.replay.owns(container):
        f.replay.taint(container)


@act("DELETE_ATTR")
def _delete_attribute(f: Frame, each: Instruction) -> None:
    f.pop()
    f.replay.change(each.argval)


# --- jumps ----------------------------------------------------------------------------------------


@act("JUMP_FORWARD")
def _jump(f: Frame, each: Instruction) -> int:
    return f.scope.code.target(f.index)


@act("JUMP_BACKWARD")
def _jump_back(f: Frame, each: Instruction) -> int:
    target = f.scope.code.target(f.index)
    if target in f.barred:
        raise CannotReplay("the script's code took another way")
    return target


def _conditional(f: Frame, each: Instruction) -> int:
    value = f.pop()
    if each.opname.endswith("NONE"):
        known = None if value is UNKNOWN else value is None
        return f.branch(known if known is None else known != ("NOT" in each.opname))
    truth = f.truth(value)
    return f.branch(truth if truth is None else truth is each.opname.endswith("TRUE"))


for _way in ("FORWARD", "BACKWARD"):
    for _condition in ("TRUE", "FALSE", "NONE", "NOT_NONE"):
        ACTS[f"POP_JUMP_{_way}_IF_{_condition}"] = _conditional


@act("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def _or_pop(f: Frame, each: Instruction) -> int:
    value = f.pop()
    truth = f.truth(value)
    height = len(f.stack)
    way = f.branch(truth if truth is None else truth is ("TRUE" in each.opname))
    if way == f.scope.code.target(f.index) and len(f.stack) == height:
        f.push(value)
    return way


@act("GET_ITER")
def _get_iter(f: Frame, each: Instruction) -> None:
    f.push(f.replay.iterate(f.pop()))


@act("FOR_ITER")
def _for_iter(f: Frame, each: Instruction) -> int | None:
    if f.index in f.heads:
        f.push(UNKNOWN)  # of this round; the living frame may hold it still
        return None
    code = f.scope.code
    target = code.target(f.index)
    iterator = f.stack[-1]
    if type(iterator) is Each:
        for value in iterator.values:
            f.push(value)
            return None
        f.pop()
        unknown = {n for n in code.stored_between(f.index, target) if f.scope.load(n) is UNKNOWN}
        f.scope.forget(unknown, target)
        return target
    for fill in code.instructions[f.index : target]:
        if fill.opname in _FILLS and fill.arg is not None and fill.arg <= len(f.stack):
            f.stack[-fill.arg] = UNKNOWN
    f.pop()
    f.skip(f.index, target)
    return target


@act("RETURN_VALUE")
def _return(f: Frame, each: Instruction) -> None:
    f.result = f.pop()
    f.is_over = True


@act("YIELD_VALUE")
def _yield(f: Frame, each: Instruction) -> None:
    f.pop()
    f.push(UNKNOWN)
