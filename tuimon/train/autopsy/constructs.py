"""What instructions that build containers, call functions and enter blocks do in a replay."""

from __future__ import annotations

from dis import Instruction
from typing import Any

from tuimon.train.autopsy import permits
from tuimon.train.autopsy.activation import Exit, Frame, act
from tuimon.train.autopsy.bytecode import CannotReplay
from tuimon.train.autopsy.shadow import NULL, UNKNOWN, Made

_SETS = (set, frozenset, list, tuple)
_DEFAULTS, _KEYWORD_DEFAULTS, _ANNOTATIONS, _CLOSURE = 1, 2, 4, 8  # flags of MAKE_FUNCTION


def _number(each: Instruction) -> int:
    return each.arg or 0


@act("BUILD_TUPLE")
def _build_tuple(f: Frame, each: Instruction) -> None:
    f.push(tuple(f.pops(_number(each))))


@act("BUILD_LIST")
def _build_list(f: Frame, each: Instruction) -> None:
    f.push(f.replay.own(f.pops(_number(each))))


@act("BUILD_SET")
def _build_set(f: Frame, each: Instruction) -> None:
    members = f.pops(_number(each))
    f.push(f.replay.own(set(members)) if all(map(_is_key, members)) else UNKNOWN)


@act("BUILD_SLICE")
def _build_slice(f: Frame, each: Instruction) -> None:
    parts = f.pops(_number(each))
    f.push(UNKNOWN if any(part is UNKNOWN for part in parts) else slice(*parts))


@act("BUILD_MAP")
def _build_map(f: Frame, each: Instruction) -> None:
    given = f.pops(2 * _number(each))
    _push_map(f, given[::2], given[1::2])


@act("BUILD_CONST_KEY_MAP")
def _build_const_key_map(f: Frame, each: Instruction) -> None:
    keys = f.pop()
    _push_map(f, list(keys), f.pops(len(keys)))


def _push_map(f: Frame, keys: list[Any], values: list[Any]) -> None:
    known = all(map(_is_key, keys))
    f.push(f.replay.own(dict(zip(keys, values, strict=True))) if known else UNKNOWN)


def _is_key(value: Any) -> bool:
    """Whether hashing a value runs nothing of the script's."""
    return type(value) in (int, str, float, bool, type(None), bytes) or (
        type(value) is tuple and all(map(_is_key, value))
    )


@act("BUILD_STRING")
def _build_string(f: Frame, each: Instruction) -> None:
    parts = f.pops(_number(each))
    f.push("".join(parts) if all(type(part) is str for part in parts) else UNKNOWN)


@act("FORMAT_VALUE")
def _format_value(f: Frame, each: Instruction) -> None:
    if _number(each) & 4:
        f.pop()
        f.pop()
        f.push(UNKNOWN)
        return
    value = f.pop()
    f.push(str(value) if type(value) in (int, str, bool) else UNKNOWN)


@act("LIST_TO_TUPLE")
def _list_to_tuple(f: Frame, each: Instruction) -> None:
    value = f.pop()
    f.push(tuple(value) if type(value) is list else UNKNOWN)


@act("LIST_APPEND", "SET_ADD")
def _append(f: Frame, each: Instruction) -> None:
    value = f.pop()
    container = f.stack[-_number(each)]
    if type(container) is list and f.replay.owns(container):
        container.append(value)
    elif type(container) is set and _is_key(value):
        container.add(value)
    else:
        f.stack[-_number(each)] = UNKNOWN


@act("MAP_ADD")
def _map_add(f: Frame, each: Instruction) -> None:
    key, value = f.pops(2)
    container = f.stack[-_number(each)]
    if type(container) is dict and _is_key(key):
        container[key] = value
    else:
        f.stack[-_number(each)] = UNKNOWN


@act("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE")
def _extend(f: Frame, each: Instruction) -> None:
    given = f.pop()
    at = -_number(each)
    container = f.stack[at]
    kind, other = type(container), type(given)
    is_map = kind is dict and other is dict
    is_set = kind is set and other in _SETS and all(map(_is_key, given))
    if kind is list and (other is list or permits.is_tuple(other)):
        container.extend(given)
    elif is_map or is_set:
        container.update(given)
    else:
        f.stack[at] = UNKNOWN


@act("UNPACK_SEQUENCE")
def _unpack(f: Frame, each: Instruction) -> None:
    count = _number(each)
    members = _members(f, f.pop())
    if members is None or len(members) != count:
        members = [UNKNOWN] * count
    f.stack += reversed(members)


@act("UNPACK_EX")
def _unpack_ex(f: Frame, each: Instruction) -> None:
    before, after = _number(each) & 0xFF, _number(each) >> 8
    members = _members(f, f.pop())
    if members is None or len(members) < before + after:
        f.stack += [UNKNOWN] * (before + 1 + after)
        return
    end = len(members) - after
    rest = f.replay.own(members[before:end])
    f.stack += reversed([*members[:before], rest, *members[end:]])


def _members(f: Frame, value: Any) -> list[Any] | None:
    iterator = f.replay.iterate(value)
    return None if iterator is UNKNOWN else list(iterator.values)


@act("KW_NAMES")
def _kw_names(f: Frame, each: Instruction) -> None:
    names = each.argval
    f.keywords = names if isinstance(names, tuple) else f.scope.raw.co_consts[_number(each)]


@act("CALL")
def _call(f: Frame, each: Instruction) -> None:
    f.call(_number(each))


@act("CALL_FUNCTION_EX")
def _call_ex(f: Frame, each: Instruction) -> None:
    kwargs = f.pop() if _number(each) & 1 else {}
    args = f.pop()
    function, null = f.pop(), f.pop()
    members = _members(f, args)
    if members is None or type(kwargs) is not dict or null is not NULL:
        f.push(UNKNOWN)
        return
    f.push(f.replay.call(function, tuple(members), dict(kwargs)))


@act("MAKE_FUNCTION")
def _make_function(f: Frame, each: Instruction) -> None:
    flags = _number(each)
    code = f.pop()
    if flags & _CLOSURE:
        f.pop()
    if flags & _ANNOTATIONS:
        f.pop()
    keyword = f.pop() if flags & _KEYWORD_DEFAULTS else {}
    defaults = f.pop() if flags & _DEFAULTS else ()
    if type(keyword) is not dict or type(defaults) is not tuple:
        f.push(UNKNOWN)
        return
    f.push(Made(code, f.scope, defaults, keyword))


@act("BEFORE_WITH")
def _before_with(f: Frame, each: Instruction) -> None:
    context = f.replay.enter(f.pop())
    if context is not None:
        context.__enter__()
        f.opened.append(context)
    f.push(Exit(context))
    f.push(UNKNOWN)


@act("RAISE_VARARGS", "RERAISE")
def _raise(f: Frame, each: Instruction) -> None:
    raise CannotReplay("the script's code would raise here")
