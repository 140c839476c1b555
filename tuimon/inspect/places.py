"""From the paths that a person names to the files of tensors that lie there, in a settled order.

Links to files are followed, as model caches are made of them; links to folders are not, and
nothing but regular files is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tuimon.feed import private
from tuimon.inspect.checkpoint import Checkpoint, Unreadable
from tuimon.inspect.safetensors_file import SafetensorsFile
from tuimon.inspect.torch_file import TorchFile, TorchReader
from tuimon.model.text import plain

MAX_FILES = 10_000
MAX_INDEX_BYTES = 64 << 20  # an index names each tensor once, in about 100 bytes
MAX_DEPTH = 6  # of folders below the one that was named
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_INDEX = ".index.json"
_HEAD_BYTES = 64
_PICKLES = {bytes((0x80, protocol)) for protocol in range(2, 6)}

_OTHER_FORMATS = {
    b"GGUF": "is a GGUF file, which scan does not read",
    b"\x89HDF": "is an HDF5 file, which scan does not read",
    b"\x93NUM": "is a numpy file, which scan does not read",
    b"vers": "is a Git LFS pointer, not the weights: run git lfs pull",
}


@dataclass
class Place:
    """One file to look at.

    Attributes:
        expected: the tensors that an index promises in it; None without an index.
        problem: why it is not looked at; "" otherwise.
    """

    path: Path
    expected: set[str] | None = None
    problem: str = ""


@dataclass
class _Found:
    places: dict[str, Place] = field(default_factory=dict)

    def add(self, place: Place) -> None:
        known = self.places.setdefault(str(place.path), place)
        if known.expected is None:
            known.expected = place.expected

    @property
    def is_full(self) -> bool:
        return len(self.places) >= MAX_FILES


def places_of(path: Path) -> list[Place]:
    """The files that a path stands for; one with a `problem` where there is none."""
    found = _Found()
    if not path.is_dir():
        if path.name.endswith(_INDEX):
            _by_index(path, found)
        else:
            found.add(Place(path, problem=_absence(path) or _distributed(path)))
    else:
        for folder in _folders(path):
            _in_folder(folder, found)
            if found.is_full:
                break
        if not found.places:
            kinds = ", ".join(SUFFIXES)
            found.add(Place(path, problem=f"holds no file of weights ({kinds})"))
    return list(found.places.values())


def open_checkpoint(path: Path, reader: TorchReader) -> Checkpoint:
    """Open a file by what it holds, whatever its name.

    Raises:
        Unreadable: nothing here can read it.
    """
    try:
        with private.open_reading(path, follows=True) as file:
            head = file.read(_HEAD_BYTES)
        if not head:
            raise Unreadable("is empty")
        if why := _OTHER_FORMATS.get(head[:4]):
            raise Unreadable(why)
        if _is_torch(head):
            return TorchFile(path, reader)
        if path.suffix in SUFFIXES[1:] and head[8:9] != b"{":
            raise Unreadable("is neither a file of torch.save nor of safetensors, or damaged")
        return SafetensorsFile(path)
    except OSError as error:
        raise Unreadable(f"cannot be opened: {_reason(error)}") from error


def numbered(path: Path) -> tuple[object, ...]:
    """Sorts names as people number them: step 9 before step 10."""
    parts = re.split(r"(\d+)", path.name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts)


def _is_torch(head: bytes) -> bool:
    """A zip archive, or a pickle of protocol 2 and above."""
    return head.startswith(b"PK\x03\x04") or head[:2] in _PICKLES


def _absence(path: Path) -> str:
    try:
        path.stat()
    except OSError as error:
        return f"cannot be opened: {_reason(error)}"
    return ""


def _reason(error: OSError) -> str:
    if error.errno is None or not error.strerror:
        return plain(str(error), 100) or "unknown reason"
    return plain(error.strerror, 100)


def _folders(path: Path) -> Iterator[Path]:
    base = len(path.parts)
    for name, below, _ in os.walk(path):
        folder = Path(name)
        deep = len(folder.parts) - base >= MAX_DEPTH
        kept = [] if deep else [each for each in below if not each.startswith(".")]
        below[:] = [each.name for each in sorted(map(Path, kept), key=numbered)]
        yield folder


def _in_folder(folder: Path, found: _Found) -> None:
    try:
        files = sorted((each for each in folder.iterdir() if not each.is_dir()), key=numbered)
    except OSError as error:
        found.add(Place(folder, problem=f"cannot be opened: {_reason(error)}"))
        return
    if any(each.suffix == ".distcp" for each in files):
        found.add(Place(folder, problem=_DISTRIBUTED))
        return
    for each in files:
        if each.name.endswith(_INDEX):
            _by_index(each, found)
    for each in files:
        if found.is_full:
            return
        if each.suffix in SUFFIXES and not (each.suffix == ".bin" and _is_something_else(each)):
            found.add(Place(each))


_DISTRIBUTED = (
    "is a distributed checkpoint, whose index is a pickle: not opened; convert it by "
    "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt"
)


def _distributed(path: Path) -> str:
    """A file that is a part of a distributed checkpoint."""
    is_part = path.suffix == ".distcp" or path.name == ".metadata"
    return f"is a part of {_DISTRIBUTED.removeprefix('is ')}" if is_part else ""


def _is_something_else(path: Path) -> bool:
    """`.bin` is also what tokenizers, runtimes and drivers call their files."""
    try:
        with private.open_reading(path, follows=True) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return bool(head) and not _is_torch(head) and not head.startswith(b"version https://git-lfs")


def _by_index(index: Path, found: _Found) -> None:
    """The shards that an index lists; they lie beside it, whatever it says."""
    try:
        raw = private.read_small(index, MAX_INDEX_BYTES, follows=True)
        shards = msgspec.json.decode(raw, type=_Index).weight_map
    except OSError as error:
        found.add(Place(index, problem=f"cannot be opened: {_reason(error)}"))
        return
    except (ValueError, RecursionError) as error:
        found.add(Place(index, problem=f"is no index of shards: {plain(str(error), 100)}"))
        return
    names: dict[str, set[str]] = {}
    for tensor, name in shards.items():
        names.setdefault(name, set()).add(tensor)
    for name in sorted(names):
        if name != Path(name).name or name in ("", ".", "..") or "\0" in name:
            problem = f"names a shard outside of its folder: {plain(name, 80)!r}"
            found.add(Place(index, problem=problem))
            return
        if found.is_full:
            return
        shard = index.parent / name
        found.add(Place(shard, names[name], problem=_absence(shard)))


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
