"""Files that hold a pickle and nothing around it: recognised by reading, never by loading."""

from __future__ import annotations

import pickletools
from collections import deque
from typing import NamedTuple

from tuimon.inspect.stand_ins import may_stand_for
from tuimon.model.text import plain

# What the old format of torch.save begins with, by whatever protocol: a number of its own.
_OF_TORCH = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_OF_TORCH_WITHIN = 64
_MOST_BYTES, _MOST_OPERATIONS = 1 << 20, 20_000
_PROTOCOL = b"\x80"  # which names the protocol, from 2 on


class _Seen(NamedTuple):
    """What the beginning of a pickle is made of."""

    names: list[str]  # of what it would import, in order
    is_whole: bool


def refusal(path: str) -> str | None:
    """Why a file is not read where it is a bare pickle; None where it is none."""
    with open(path, "rb") as file:
        head = file.read(_MOST_BYTES)
    named = head[:1] == _PROTOCOL and len(head) > _OF_TORCH_WITHIN
    if _OF_TORCH in head[:_OF_TORCH_WITHIN]:
        return None
    seen = _read(head)
    if not named and not (seen.is_whole and (seen.names or head[:1] == _PROTOCOL)):
        return None
    protocol = head[1] if head[:1] == _PROTOCOL else 0
    bad = [name for name in seen.names if not may_stand_for(name)]
    asks = f", a program that asks for {plain(bad[0], 80)}" if bad else ", which is a program"
    return (
        f"is a bare pickle (protocol {protocol}){asks}, and nothing that torch.save writes: "
        "not loaded, nothing executed"
    )


def _read(head: bytes) -> _Seen:
    names: list[str] = []
    words: deque[str] = deque(maxlen=2)  # a name from the stack is made of the newest two
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(head)):
            if operation.name in ("GLOBAL", "INST"):
                names.append(".".join(str(argument).split(" ")))
            elif operation.name == "STACK_GLOBAL":
                names.append(".".join(words))
            elif isinstance(argument, str):
                words.append(argument)
            if operation.name == "STOP":
                return _Seen(names, True)
            if count >= _MOST_OPERATIONS:
                break
    except Exception:  # nothing that a hostile file may do to the standard library's reader
        pass
    return _Seen(names, False)
