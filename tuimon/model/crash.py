"""The record of a crash: the exception that ended a script, with the place and what stood there.

Statistics of tensors only, never their values. Wire rules are those of `model.records`.
"""

from __future__ import annotations

import msgspec

from tuimon.model.batches import TensorSummary
from tuimon.model.wire import Record

DATA = "data"  # phases beside those of `model.autopsy`
OTHER = "other"

MAX_FRAMES = 16
MAX_TENSORS = 16


class CodePlace(msgspec.Struct, frozen=True, array_like=True):
    """One frame of the user's own code.

    Attributes:
        source: the text of the line, stripped, at most 200 characters.
        module: path of the module whose method it is; None for code of no watched module.
    """

    file: str
    line: int
    function: str = ""
    source: str = ""
    module: str | None = None


class MemoryFigures(msgspec.Struct, frozen=True, array_like=True):
    """Memory of one device as its allocator accounts for it, or of the host process.

    Attributes:
        asked_bytes: what could not be had, by the exception's own words.
    """

    device: str
    asked_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    total_bytes: int | None = None


class Crash(Record, frozen=True, array_like=True, tag=22):
    """What was found on the way down the traceback of an exception that nobody caught.

    Attributes:
        step: index of the update that was being prepared; between two updates, of the last one.
        kind: class name of the exception.
        message: its text, one line.
        cause: class name and text of the exception it was raised from; "" without one.
        phase: "forward", "backward", "optimizer", "data" or "other".
        place: the innermost frame of the user's own code; None when there is none.
        frames: the user's own frames, outermost first, at most `MAX_FRAMES`; `place` is the last.
        module: path of the innermost watched module that was running; "" is the root.
        module_type: class name of it.
        in_model: False where no watched module was running: loss code, data, the loop itself.
        op: aten name of the operation that raised, "aten::nll_loss_nd"; "" when it is not known.
        library: where in a library the exception was raised, "torch/nn/functional.py:3458".
        inputs: tensors in the frames that failed, the nearest to the failing line first.
        memory: for an exception about memory: figures of the devices and of the host.
        out_of_memory: it is one.
        notes: limits of this look, in sentences for a person.
    """

    step: int
    time_ns: int  # unix time
    rank: int = 0
    kind: str = ""
    message: str = ""
    cause: str = ""
    phase: str = OTHER
    place: CodePlace | None = None
    frames: list[CodePlace] = []
    module: str = ""
    module_type: str = ""
    in_model: bool = False
    op: str = ""
    library: str = ""
    inputs: list[TensorSummary] = []
    memory: list[MemoryFigures] = []
    out_of_memory: bool = False
    notes: list[str] = []
