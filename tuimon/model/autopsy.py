"""The record of an autopsy: which operation went wrong first, where, and how the poison spread.

Wire rules are those of `model.records`.
"""

from __future__ import annotations

import msgspec

from tuimon.model.wire import Record

FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"

# `Autopsy.verdict`.
OPERATION = "operation"  # `first` had finite inputs and a non-finite output
LEAF = "leaf"  # no operation is to blame: `leaves` were non-finite before anything was computed
NOT_REPRODUCED = "not-reproduced"  # the re-run did not show what the step showed
UNKNOWN = "unknown"  # neither; `notes` say why and what would tell

INCOMING = "incoming gradient"  # name of what a derivative was given by the one before it
COMPUTED = "computed"  # a leaf that is none: another part of the training has made it

MAX_PATH = 32
MAX_INPUTS_SHOWN = 8
MAX_MODULES = 256


class TensorNote(msgspec.Struct, frozen=True, array_like=True):
    """One operand, as far as it was looked at.

    Attributes:
        name: what it is where that is known: "head.weight", "batch[0]", "argument 1"; else "".
        minimum, maximum: over the finite elements; None where there are none.
        nan, posinf, neginf: exact counts.
        zeros: exact zeros; None where they were not counted.
    """

    name: str
    shape: list[int]
    dtype: str
    minimum: float | None = None
    maximum: float | None = None
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    numel: int = 0
    zeros: int | None = None


class OpSite(msgspec.Struct, frozen=True, array_like=True):
    """One operation of a step, with its place in the user's code.

    Attributes:
        op: aten name without overload, "aten::log".
        phase: `FORWARD`, `BACKWARD` or `OPTIMIZER`.
        module: path of the innermost module it ran in; "" is the root, or code outside of it.
        in_model: False for code outside of every module, such as the loss.
        file, line: the user's own code; in the backward phase that of the forward operation it
            differentiates, or inside the user's own backward.
        source: the text of that line, stripped, at most 200 characters.
        node: name of the autograd node in the backward phase, "LogBackward0".
        inputs, outputs: what it was given and gave, at most `MAX_INPUTS_SHOWN` each.
        count: consecutive repetitions of the same site that this entry stands for.
    """

    op: str
    phase: str = FORWARD
    module: str | None = None
    in_model: bool = True
    file: str | None = None
    line: int | None = None
    source: str = ""
    function: str = ""
    node: str = ""
    inputs: list[TensorNote] = []
    outputs: list[TensorNote] = []
    count: int = 1


class PoisonedLeaf(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that was non-finite before the step computed anything.

    Attributes:
        kind: "parameter" | "buffer" | "batch" | "target" | "optimizer-state" | "constant", or
            `COMPUTED` for an input of a model that no engine could follow any further.
        samples: indices along the first axis that hold a non-finite element, at most 16.
        bad_samples: how many there are in all; 0 where they were not counted.
    """

    kind: str
    tensor: TensorNote
    samples: list[int] = []
    bad_samples: int = 0


class ModuleState(msgspec.Struct, frozen=True, array_like=True):
    """Which of a module's outputs and gradients were bad in the examined step."""

    module: str
    type_name: str
    forward_bad: bool | None = None  # None: not looked at
    backward_bad: bool | None = None
    parameter_bad: bool | None = None


class Autopsy(Record, frozen=True, array_like=True, tag=21):
    """What an examination of one step found.

    Attributes:
        step: index of the update that was about to happen.
        rank: whose.
        trigger: the symptom kind that led to it, or "request".
        engine: engines whose findings stand in it, in order: "G", "M", "R", "M+G", …; "" for none.
        verdict: `OPERATION`, `LEAF`, `NOT_REPRODUCED` or `UNKNOWN`.
        first: the first operation that went wrong; for `LEAF` the first that met the leaf.
        leaves: poisoned leaves on the way to what is bad, the nearest to `first` first.
        path: from `first` to the loss or gradient that was seen to be bad, both ends included.
        modules: the module tree with what was bad when.
        constants: sources of intended infinities that `first` turned into NaN ("masked_fill").
        optimizer: class name, in the optimizer phase.
        loss_scale: the scale that the gradients carried; None without one.
        bad_at_scale_1: whether it is bad without the loss scale too; None when not tried.
        notes: limits of this examination, in sentences for a person.
        duration_s: what it took.
        upstream: in the backward phase names of autograd nodes between `first` and the loss, the
            nearest to `first` first, at most `MAX_PATH`: "WhereBackward0" tells that a branch was
            not selected.
        recorded_loss, rerun_loss: what the step showed, and what its re-run gave.
    """

    step: int
    time_ns: int
    rank: int = 0
    trigger: str = ""
    engine: str = ""
    verdict: str = UNKNOWN
    first: OpSite | None = None
    leaves: list[PoisonedLeaf] = []
    path: list[OpSite] = []
    modules: list[ModuleState] = []
    constants: list[str] = []
    optimizer: str = ""
    loss_scale: float | None = None
    bad_at_scale_1: bool | None = None
    notes: list[str] = []
    duration_s: float = 0.0
    upstream: list[str] = []
    recorded_loss: float | None = None
    rerun_loss: float | None = None
