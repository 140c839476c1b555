"""What a person chose for the eyes, kept for the next viewer: theme, glyphs, sizes of panels.

One small file in the user's state folder. It can change nothing but the picture, so that one that
cannot be used is left aside with a sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import structs

from tuimon.config import Theme
from tuimon.feed.paths import state_folder
from tuimon.feed.private import read_small, replace
from tuimon.model.text import plain

MAX_BYTES = 64 << 10

_Cells = Annotated[int, msgspec.Meta(ge=-500, le=500)]
_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Panels = Annotated[dict[_Name, tuple[_Cells, _Cells]], msgspec.Meta(max_length=200)]


class Kept(msgspec.Struct, frozen=True):
    """All of the file.

    Attributes:
        theme: chosen last; None where none was.
        glyphs: the alphabet chosen last, by the one that the terminal promised then.
        sizes: columns and rows more than a layout gives, by screen and panel.
    """

    theme: Theme | None = None
    glyphs: dict[_Name, _Name] = {}
    sizes: dict[_Name, _Panels] = {}


def read_kept() -> tuple[Kept, str]:
    """What was kept, and why a file that is there is not used; "" when all is well."""
    place = _place()
    try:
        return msgspec.json.decode(read_small(place, MAX_BYTES), type=Kept), ""
    except FileNotFoundError:
        return Kept(), ""
    except OSError as error:
        why = error.strerror or type(error).__name__
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = plain(str(error), 80)
    return Kept(), f"{place.name} is not used: {why}; it is in {place.parent}"


def keep(**chosen: Any) -> None:
    """Write these fields; what is kept of the others stays.

    Raises:
        OSError: there is no place for it.
    """
    place = _place()
    kept, _ = read_kept()
    glyphs = {**kept.glyphs, **chosen.pop("glyphs", {})}
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(place, msgspec.json.encode(structs.replace(kept, glyphs=glyphs, **chosen)))


def _place() -> Path:
    return state_folder() / "viewer.json"
