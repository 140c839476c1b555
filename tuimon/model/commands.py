"""The commands a viewer may send, each with the check that decides whether it makes sense at all.

`problem()` looks at the command alone; whether the training can carry it out now is the
trainer's answer. Commands are data: nothing in them is evaluated or unpickled.
"""

from __future__ import annotations

import math
import re

import msgspec

from tuimon.model import parsing
from tuimon.model.records import CLIP_OFF, CLIP_ON, CLIP_USER
from tuimon.model.text import plain

MAX_STEPS_ONCE = 1_000_000
MAX_LAYERS_PER_DUMP = 10_000
MAX_LEASE_S = 3600.0
MAX_LR_FACTOR = 1e6
MAX_TEXT = 4096  # bytes of any name or path in a command
_MOST_NAMED = 3
MAX_UNDONE = 64  # changes that can be taken back, the newest first
CLIP, LR = "clip", "lr"  # kinds of changes that can be taken back


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Base of everything a viewer may ask of a training."""

    def problem(self) -> str:
        """Why the command cannot be carried out by any training; "" when it can."""
        return ""

    @property
    def title(self) -> str:
        """The name that the ledger and the screen show."""
        return type(self).__name__

    @property
    def words(self) -> str:
        """What a person calls it."""
        return title_words(self.title)


def title_words(title: str) -> str:
    """A class name as words, where nobody has said better: "SetClip" is "set clip"."""
    return _TITLE_WORDS.get(title) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", title).lower()


_TITLE_WORDS = {
    "SetClip": "clip",
    "SetMaxNorm": "max_norm",
    "StepOnce": "step",
    "ScaleLr": "scale the learning rate",
    "SetLr": "learning rate",
    "SetBreakpoint": "breakpoint",
    "ReleaseLr": "the script's own learning rate",
}


class Pause(Command, frozen=True, array_like=True, tag=1):
    """Wait at the next gate, before the update."""


class Resume(Command, frozen=True, array_like=True, tag=2):
    """Go on after `Pause`."""


class StepOnce(Command, frozen=True, array_like=True, tag=3):
    """While paused: attempt `count` updates, then wait again."""

    count: int = 1

    def problem(self) -> str:
        if not 1 <= self.count <= MAX_STEPS_ONCE:
            return f"the number of steps is {self.count}; give 1 to {MAX_STEPS_ONCE:,}"
        return ""

    @property
    def words(self) -> str:
        return "one step" if self.count == 1 else f"{self.count:,} steps"


class SetClip(Command, frozen=True, array_like=True, tag=4):
    """Who decides about gradient clipping: tuimon ("on"), nobody ("off"), the script ("user")."""

    mode: str
    max_norm: float | None = None  # for "on"; None keeps the last one

    def problem(self) -> str:
        if self.mode not in (CLIP_ON, CLIP_OFF, CLIP_USER):
            return f"clip mode {self.mode[:20]!r} is unknown; use on, off or user"
        if self.max_norm is not None:
            if self.mode != CLIP_ON:
                return "max_norm goes with clip on only"
            return _bad_max_norm(self.max_norm)
        return ""

    @property
    def words(self) -> str:
        if self.mode == CLIP_USER:
            return "clip as the script does"
        return f"clip {self.mode}" + ("" if self.max_norm is None else f" {self.max_norm!r}")


class SetMaxNorm(Command, frozen=True, array_like=True, tag=5):
    """Change the bound of tuimon's clipping."""

    max_norm: float

    def problem(self) -> str:
        return _bad_max_norm(self.max_norm)

    @property
    def words(self) -> str:
        return f"max_norm {self.max_norm!r}"


class Dump(Command, frozen=True, array_like=True, tag=6):
    """Write parameter and gradient of the named layers as safetensors plus JSON statistics."""

    layers: list[str]  # exact parameter names, or module paths that stand for all below them
    directory: str  # absolute, on the trainer's host

    def problem(self) -> str:
        if not self.layers or len(self.layers) > MAX_LAYERS_PER_DUMP:
            return f"{len(self.layers)} layers named; give 1 to {MAX_LAYERS_PER_DUMP:,}"
        if any(len(name.encode()) > MAX_TEXT for name in self.layers):
            return f"a layer name is longer than {MAX_TEXT} bytes"
        return _bad_folder(self.directory)

    @property
    def words(self) -> str:
        named = [plain(name, 120) or "all layers" for name in self.layers[:_MOST_NAMED]]
        more = len(self.layers) - len(named)
        return f"dump {', '.join(named)}{f' and {more:,} more' if more else ''}"


class Stop(Command, frozen=True, array_like=True, tag=7):
    """End the training at the next boundary by an exception derived from KeyboardInterrupt."""


class ArmHold(Command, frozen=True, array_like=True, tag=8):
    """Wait before the first update whose gradients are not finite, until somebody decides.

    Attributes:
        lease_s: it disarms by itself when nobody has sent `RenewHold` for so long: that is how a
            viewer arms it, so that it ends with the last viewer. 0 lasts until `DisarmHold`.
    """

    lease_s: float = 0.0

    def problem(self) -> str:
        return _bad_lease(self.lease_s, 0.0)


class DisarmHold(Command, frozen=True, array_like=True, tag=9):
    """No longer wait; what the run's own policy says stays."""


class RunAutopsy(Command, frozen=True, array_like=True, tag=10):
    """Examine the next update, bad or not; where there are several ranks, that of one of them."""

    rank: int = 0

    def problem(self) -> str:
        return "" if self.rank >= 0 else f"the rank is {self.rank}; they count from 0"


class SkipUpdate(Command, frozen=True, array_like=True, tag=11):
    """Leave out the next `count` updates; forward and backward have run. Ends a hold."""

    count: int = 1

    def problem(self) -> str:
        if not 1 <= self.count <= MAX_STEPS_ONCE:
            return f"the number of updates is {self.count}; give 1 to {MAX_STEPS_ONCE:,}"
        return ""


class RenewHold(Command, frozen=True, array_like=True, tag=12):
    """A viewer is still there: what is armed by a lease stays armed. Never enters the ledger."""

    lease_s: float = 30.0

    def problem(self) -> str:
        return _bad_lease(self.lease_s, 1.0)


class ScaleLr(Command, frozen=True, array_like=True, tag=13):
    """Multiply the learning rate of every update from now on; a scheduler does not notice."""

    factor: float

    def problem(self) -> str:
        if not (math.isfinite(self.factor) and 0 < self.factor <= MAX_LR_FACTOR):
            return f"the factor is {self.factor}; give a number above 0, at most {MAX_LR_FACTOR:g}"
        return ""

    @property
    def words(self) -> str:
        return f"learning rate × {self.factor:g}"


class SetLr(Command, frozen=True, array_like=True, tag=14):
    """Let an optimizer's updates have this learning rate, whatever a scheduler says.

    Attributes:
        group: index of the param_group; None for all of them.
        optimizer: its number in the records; 0 is the one whose steps count.
    """

    value: float
    group: int | None = None
    optimizer: int = 0

    def problem(self) -> str:
        if not (math.isfinite(self.value) and self.value >= 0):
            return f"the learning rate is {self.value}; give a finite number, 0 or above"
        if self.group is not None and self.group < 0:
            return f"the param_group is {self.group}; they count from 0"
        if self.optimizer < 0:
            return f"the optimizer is {self.optimizer}; they count from 0"
        return ""

    @property
    def words(self) -> str:
        which = "" if self.group is None else f" of group {self.group}"
        whose = f" of optimizer {self.optimizer}" if self.optimizer else ""
        return f"learning rate {self.value!r}{which}{whose}"


class ReleaseLr(Command, frozen=True, array_like=True, tag=15):
    """The script's own learning rates again."""


class RollBack(Command, frozen=True, array_like=True, tag=16):
    """Return to the last healthy snapshot; the update that waits is left out. Ends a hold.

    Attributes:
        lr_factor: the learning rate is scaled by it from then on; None leaves it alone.
    """

    lr_factor: float | None = None

    def problem(self) -> str:
        return "" if self.lr_factor is None else ScaleLr(self.lr_factor).problem()

    @property
    def words(self) -> str:
        scaled = "" if self.lr_factor is None else f", learning rate × {self.lr_factor:g}"
        return f"roll back{scaled}"


class SaveCheckpoint(Command, frozen=True, array_like=True, tag=17):
    """Write models, optimizers, loss scale and random streams to a file."""

    directory: str  # absolute, on the trainer's host

    def problem(self) -> str:
        return _bad_folder(self.directory)


class SetBreakpoint(Command, frozen=True, array_like=True, tag=20):
    """Hold the training at the first update at which a condition becomes true, and each later one.

    Attributes:
        condition: in the grammar of `model.parsing`.
    """

    condition: str

    def problem(self) -> str:
        found = parsing.problem(self.condition)
        return f"the condition, {found}" if found else ""

    @property
    def words(self) -> str:
        return f"breakpoint {plain(self.condition, 120)}"


class ClearBreakpoint(Command, frozen=True, array_like=True, tag=21):
    """Wait for it no longer."""

    number: int | None = None  # None is all of them

    def problem(self) -> str:
        if self.number is not None and not 1 <= self.number <= MAX_STEPS_ONCE:
            return f"the number of the breakpoint is {self.number}; they count from 1"
        return ""

    @property
    def words(self) -> str:
        which = "all breakpoints" if self.number is None else f"breakpoint {self.number}"
        return f"clear {which}"


class Inspect(Command, frozen=True, array_like=True, tag=22):
    """Look at every element of one layer, at the next gate or while the training waits there."""

    layer: str  # a parameter, or a module's path

    def problem(self) -> str:
        if not self.layer:
            return "name a layer to inspect"
        if len(self.layer.encode(errors="replace")) > MAX_TEXT:
            return f"the layer's name is longer than {MAX_TEXT} bytes"
        return ""

    @property
    def words(self) -> str:
        return f"inspect {plain(self.layer, 120)}"


class Undo(Command, frozen=True, array_like=True, tag=23):
    """Take back the newest change of clipping, max_norm or learning rate that still stands.

    Attributes:
        of: "clip" or "lr", to take back the newest of that kind; "" for the newest of all.
    """

    of: str = ""

    def problem(self) -> str:
        return "" if self.of in ("", CLIP, LR) else f"nothing of {plain(self.of, 20)!r} is undone"

    @property
    def words(self) -> str:
        return "undo"


AnyCommand = (
    Pause
    | Resume
    | StepOnce
    | SetClip
    | SetMaxNorm
    | Dump
    | Stop
    | ArmHold
    | DisarmHold
    | RunAutopsy
    | SkipUpdate
    | RenewHold
    | ScaleLr
    | SetLr
    | ReleaseLr
    | RollBack
    | SaveCheckpoint
    | SetBreakpoint
    | ClearBreakpoint
    | Inspect
    | Undo
)


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What travels to the trainer: one command with its identity."""

    id: str  # unique; a second use is refused as a replay
    by: str  # "user@host (tty)" for the ledger; not a credential
    command: AnyCommand
    asked_at_s: float = 0.0  # unix time


def undone_as(command: Command) -> str:
    """The kind of change that an undo takes back of it; "" where it makes none."""
    if isinstance(command, SetClip | SetMaxNorm):
        return CLIP
    scales = isinstance(command, RollBack) and command.lr_factor is not None
    return LR if scales or isinstance(command, ScaleLr | SetLr | ReleaseLr) else ""


def _bad_lease(value: float, least_s: float) -> str:
    if not (math.isfinite(value) and least_s <= value <= MAX_LEASE_S):
        return f"the lease is {value} s; give {least_s:g} to {MAX_LEASE_S:g}"
    return ""


def _bad_folder(directory: str) -> str:
    if not directory.startswith("/") or "\0" in directory:
        return "the folder to write to must be an absolute path"
    if len(directory.encode()) > MAX_TEXT:
        return f"the folder's path is longer than {MAX_TEXT} bytes"
    return ""


def _bad_max_norm(value: float) -> str:
    if not (math.isfinite(value) and value > 0):
        return f"max_norm is {value}; give a finite number above 0"
    return ""
