"""The process that opens what torch has saved, on behalf of a scan: the only module with torch.

It answers one request a line on stdin with one line on stdout. Nothing of a file is executed:
`torch.load` runs with `weights_only=True`, and in the place of every class that it does not know
stands one that only keeps what it is given. Memory, and files that could be written, are limited.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from tuimon.inspect import bare_pickle
from tuimon.inspect.dtypes import DTYPES, DType
from tuimon.inspect.stand_ins import StandIn, may_stand_for
from tuimon.inspect.statistics import PIECE_BYTES, Raw, measure
from tuimon.model.text import plain

MAX_TENSORS = 1_000_000
MAX_DEPTH = 100  # of containers within containers
MAX_FOREIGN = 200  # classes of one file that nobody here knows
ROOM_BYTES = 2 << 30  # beyond the file itself: torch's own, and one tensor that must be copied
_LEGACY_COPIES = 2  # an old file is read, not mapped
_FOREIGN = re.compile(r"GLOBAL ([\w.<>-]+)")


class Refusal(Exception):
    """Why a file is not read, in one line."""


class Opened:
    """The tensors of one file."""

    def __init__(self, path: str) -> None:
        """Load a file.

        Raises:
            Refusal: it cannot be read, or would have to be executed.
        """
        self.foreign: list[str] = []
        state = self._loaded(path)
        self.tensors: list[tuple[str, Any]] = []
        self.numbers: list[str] = []  # names of plain numbers that are NaN
        self._seen: set[int] = set()
        self._walk(state, "", 0)

    def _loaded(self, path: str) -> Any:
        import torch

        is_zip = _checked_zip(path)
        if not is_zip and (why := bare_pickle.refusal(path)) is not None:
            raise Refusal(why)
        allowed: list[Any] = []
        while True:
            try:
                with torch.serialization.safe_globals(allowed):
                    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
            except MemoryError as error:
                raise Refusal("takes more memory than a file of its size should") from error
            except Exception as error:
                allowed.append((StandIn, self._next_foreign(error)))

    def _next_foreign(self, error: Exception) -> str:
        """The class that an error asks for, where a stand-in may take its place."""
        said = str(error)
        found = _FOREIGN.search(said)
        if found is None or "blocked" in said:
            raise Refusal(_in_one_line(said, type(error).__name__)) from error
        # Of builtins torch says the bare name.
        name = found[1] if "." in found[1] else f"builtins.{found[1]}"
        if not may_stand_for(name):
            raise Refusal(
                f"asks for {plain(name, 80)}, which no weights need: not loaded, nothing executed"
            ) from error
        if name in self.foreign or len(self.foreign) >= MAX_FOREIGN:
            raise Refusal(f"needs {plain(name, 80)} to be loaded: not executed") from error
        self.foreign.append(name)
        return name

    def _walk(self, value: Any, name: str, depth: int) -> None:
        import torch

        if isinstance(value, torch.Tensor):
            if len(self.tensors) >= MAX_TENSORS:
                raise Refusal(f"has more than {MAX_TENSORS:,} tensors")
            self.tensors.append((name, value))
            return
        if isinstance(value, float):
            if value != value:
                self.numbers.append(name)
            return
        if id(value) in self._seen or depth > MAX_DEPTH:
            return  # what stands in two places, or in itself, says nothing new there
        if isinstance(value, dict | list | tuple | set | StandIn):
            self._seen.add(id(value))
            for key, each in _parts(value):
                self._walk(each, f"{name}.{key}" if name else key, depth + 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield (key if isinstance(key, str) else repr(key)[:100]), each
    elif isinstance(value, list | tuple | set):
        for index, each in enumerate(value):
            yield str(index), each
    elif isinstance(value, StandIn):
        yield from _parts(value.state)
        yield from _parts(value.arguments)


def _checked_zip(path: str) -> bool:
    """Whether it is one of torch's archives, which hold everything as it is.

    Raises:
        Refusal: it would grow when it is unpacked, or is damaged.
    """
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(each.file_size for each in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        raise Refusal("is a damaged archive, or is cut short") from error
    if total > os.path.getsize(path):
        raise Refusal(f"would grow to {total:,} bytes: torch.save compresses nothing; not unpacked")
    return True


def _in_one_line(said: str, kind: str) -> str:
    """What torch says, without its advice to execute the file."""
    if "TorchScript" in said:
        return "is a TorchScript program, which only runs: save its state_dict()"
    if "blocked" in said:
        found = re.search(r"GLOBAL (\S+)", said)
        what = plain(found[1], 80) if found else "the operating system"
        return f"asks for {what}, which no weights need: not loaded, nothing executed"
    if "allocate" in said or "memory" in said.lower():
        return "takes more memory than a file of its size should"
    if "Unsupported operand" in said:
        return "is pickled by a protocol that weights_only does not read: save it by protocol 2"
    inner = said.split("WeightsUnpickler error: ")[-1].strip()
    first = next(iter(inner.splitlines()), "").split(" Please ")[0].split(". ")[0]
    return f"cannot be loaded: {plain(first, 120) or kind}"


def _bytes_of(tensor: Any) -> tuple[Raw, int]:
    """(the bytes of a tensor in order, how often each of its elements stands in it).

    Raises:
        Refusal: it has no bytes here, or claims more than it has.
    """
    import torch

    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout != torch.strided:
        tensor = tensor.values() if tensor.layout != torch.sparse_coo else tensor._values()
    if tensor.device.type != "cpu":
        raise Refusal(f"has tensors without data ({tensor.device.type})")
    tensor = tensor.detach()
    times = 1
    for dimension, stride in enumerate(tensor.stride()):
        # An expanded dimension repeats its elements, and is stored once.
        if stride == 0 and tensor.shape[dimension] > 1:
            times *= tensor.shape[dimension]
            tensor = tensor.narrow(dimension, 0, 1)
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise Refusal("has tensors larger than what is stored of them")
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 1:
        # Its stride can be anything, and a view as bytes wants 1.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy(), times


class Worker:
    """Answers requests about the files that it was told to open."""

    def __init__(self, answers: BinaryIO) -> None:
        self._answers = answers
        self._open: dict[str, Opened] = {}

    def answer(self, request: dict[str, Any]) -> None:
        """Carry out one request; whatever goes wrong is its answer."""
        actions: dict[str, Callable[..., None]] = {
            "open": self._open_file,
            "measure": self._measure,
            "read": self._read,
            "close": self._close,
        }
        try:
            actions[request.pop("do")](**request)
        except Refusal as refusal:
            self._say({"error": str(refusal)})
        except MemoryError:
            self._say({"error": "takes more memory than a file of its size should"})
        except Exception as error:
            self._say({"error": _in_one_line(str(error), type(error).__name__)})

    def _open_file(self, path: str) -> None:
        _limit_memory(Path(path).stat().st_size)
        opened = self._open[path] = Opened(path)
        tensors = [[name, *_described(tensor)] for name, tensor in opened.tensors]
        self._say({"tensors": tensors, "foreign": opened.foreign, "numbers": opened.numbers})

    def _measure(self, path: str, index: int) -> None:
        name, tensor = self._open[path].tensors[index]
        dtype, shape = _described(tensor)
        raw, times = _bytes_of(tensor)
        stored_shape = _stored_shape(tensor, shape)
        measured = measure(name, _known(dtype), stored_shape, _reader(raw))
        measured.shape = shape
        measured.nan, measured.posinf, measured.neginf = (
            each * times for each in (measured.nan, measured.posinf, measured.neginf)
        )
        if times > 1:
            measured.constant_rows = None  # a repeated dimension says nothing of training
        self._say(msgspec.to_builtins(measured))

    def _read(self, path: str, index: int) -> None:
        _, tensor = self._open[path].tensors[index]
        raw, _ = _bytes_of(tensor.contiguous())
        self._say({"size": len(raw)})
        for start in range(0, len(raw), PIECE_BYTES):
            self._answers.write(raw[start : start + PIECE_BYTES].data)
        self._answers.flush()

    def _close(self, path: str) -> None:
        self._open.pop(path, None)
        self._say({})

    def _say(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message).encode() + b"\n")
        self._answers.flush()


def _described(tensor: Any) -> tuple[str, list[int]]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _stored_shape(tensor: Any, shape: list[int]) -> list[int]:
    """The shape of what `_bytes_of` gives."""
    import torch

    if tensor.layout != torch.strided:
        values = tensor.values() if tensor.layout != torch.sparse_coo else tensor._values()
        return list(values.shape)
    return [1 if stride == 0 else side for side, stride in zip(shape, tensor.stride(), strict=True)]


def _known(name: str) -> DType:
    # Quantised dtypes are measured by the integers that they store.
    names = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
    found = DTYPES.get(names.get(name, name))
    if found is None:
        raise Refusal(f"has tensors of dtype {plain(name, 40)}, which scan does not know")
    return found


def _reader(raw: Raw) -> Callable[[int], Raw]:
    place = 0

    def read(size: int) -> Raw:
        nonlocal place
        place += size
        piece = raw[place - size : place]
        return piece if piece.flags.aligned else np.array(piece)

    return read


def _limit_memory(file_bytes: int) -> None:
    """Let the address space grow by what this file may need. Not every system can be asked."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path("/proc/self/statm").read_text(encoding="ascii").split()
        now = int(words[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(
            resource.RLIMIT_AS, (now + ROOM_BYTES + _LEGACY_COPIES * file_bytes, hard)
        )


def _limit_writing() -> None:
    """No file of this process can grow beyond nothing: neither a core nor anything else."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _limit_writing()
    worker = Worker(answers)
    try:
        import torch
    except ImportError as error:
        worker._say({"error": f"torch cannot be imported: {plain(str(error), 120)}"})
        return
    torch.set_num_threads(1)
    worker._say({"version": str(torch.__version__)})
    for line in sys.stdin.buffer:
        worker.answer(json.loads(line))


if __name__ == "__main__":
    main()
