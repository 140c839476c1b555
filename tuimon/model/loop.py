"""Records about how a loop puts its parts together: calls, reach of the loss, modes, loaded state.

Facts for whoever judges them. Wire rules are those of `model.records`.
"""

from __future__ import annotations

import msgspec

from tuimon.model.wire import Record

MAX_NAMES = 4  # of each kind that a record names
MAX_NORMS = 16

# `StateLoaded.what`.
MODULE = "module"
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
SCALER = "scaler"
FILE = "file"  # a file was read; `holds` says which kinds of state lie in it
BEGINS = "begins"  # an optimizer is about to make its first update in this process


class LoopCalls(Record, frozen=True, array_like=True, tag=60):
    """What happened to gradients between updates, counted over the updates that were looked at.

    Of several optimizers the first five counts are those of the one that most is wrong with.

    Attributes:
        looked: updates that a backward led to and that were looked at.
        uncleared: of these, with gradients to which an earlier update's were added.
        emptied: with gradients that were there after backward and gone before the update.
        unreached: with no gradient in any parameter of the optimizer although backward ran.
        discarded: with gradients of an earlier backward that were thrown away before the last one.
        first: name of a count -> step at which it was seen first.
        names: parameters that `uncleared` speaks of.
        eval_updates: updates whose forward ran in evaluation mode; `train_updates`: in training
            mode, as far as the root module says.
        first_eval_update: step of the first of those in evaluation mode.
        train_evals: rows of forwards without a graph that ran in training mode, two or more each.
        proper_evals: forwards in evaluation mode.
        unsynced: updates of a data-parallel model whose last forward did not announce a reduction.
        bypassed: updates of a data-parallel model that no forward of its wrapper led to.
    """

    looked: int = 0
    uncleared: int = 0
    emptied: int = 0
    unreached: int = 0
    discarded: int = 0
    first: dict[str, int] = {}
    names: list[str] = []
    eval_updates: int = 0
    train_updates: int = 0
    first_eval_update: int | None = None
    train_evals: int = 0
    proper_evals: int = 0
    unsynced: int = 0
    bypassed: int = 0


class Reach(Record, frozen=True, array_like=True, tag=61):
    """Which trainable parameters a loss reaches, beside those that optimizers hold.

    Attributes:
        step: index of the update that the backward leads to.
        is_whole: whether the graph was walked to its ends.
        owned, owned_elements: trainable parameters of all optimizers, and their elements.
        reached: how many of them the loss reaches.
        unowned, unowned_elements: trainable parameters that it reaches and no optimizer holds.
        unowned_names: of some of them that lie in a watched model.
        late: unowned ones that joined a watched model after an optimizer had been made from it.
        hidden: unowned ones in modules that lie in a plain list or dict of a watched model.
        loose: unowned ones that no watched model has.
        orphans: trainable parameters of optimizers that are in no watched model and that the loss
            does not reach.
        frozen_elements: elements that optimizers hold and that need no gradient.
    """

    step: int
    is_whole: bool = True
    owned: int = 0
    owned_elements: int = 0
    reached: int = 0
    unowned: int = 0
    unowned_elements: int = 0
    unowned_names: list[str] = []
    late: list[str] = []
    hidden: list[str] = []
    loose: int = 0
    orphans: int = 0
    frozen_elements: int = 0


class NormLayer(msgspec.Struct, frozen=True, array_like=True):
    """A layer with running statistics.

    Attributes:
        momentum: None for a cumulative mean.
        tracked: forwards that went into its statistics; None where it is not known.
        is_initial: mean 0 and variance 1 throughout.
        mean_absmax, var_low, var_high: of the statistics; NaN where they hold one.
    """

    name: str
    kind: str
    training: bool
    momentum: float | None = None
    tracked: int | None = None
    is_initial: bool = False
    mean_absmax: float = 0.0
    var_low: float = 1.0
    var_high: float = 1.0


class NormLayers(Record, frozen=True, array_like=True, tag=62):
    """The layers with running statistics of the watched models, at most `MAX_NORMS`.

    Attributes:
        step: index of the newest update.
        total: how many there are.
        at_end: told at the end of the run, whatever mode the script left its model in.
    """

    step: int
    items: list[NormLayer] = []
    total: int = 0
    at_end: bool = False


class StateLoaded(Record, frozen=True, array_like=True, tag=63):
    """State that was put into a live object, read from a file, or missing at a first update.

    Attributes:
        step: index of the update that comes next.
        what: one of the kinds above.
        optimizer: index, where it concerns one that is watched; None otherwise.
        matched, missing, unexpected: keys of a module.
        rate: learning rate of the first group, as it was loaded or as the first update uses it.
        entries: parameters that the optimizer has state for.
        holds: kinds of state in a file.
        kind: class name.
    """

    step: int
    what: str
    optimizer: int | None = None
    matched: int = 0
    missing: int = 0
    unexpected: int = 0
    rate: float | None = None
    entries: int = 0
    holds: list[str] = []
    kind: str = ""


class Warned(Record, frozen=True, array_like=True, tag=64):
    """A warning of PyTorch's own that was shown.

    Attributes:
        about: slug: "broadcast", "checkpoint", "degrees-of-freedom", "scheduler-order", …
        text: its words, one line.
    """

    step: int
    about: str
    text: str


class RankState(Record, frozen=True, array_like=True, tag=65):
    """What a process of a distributed training holds, beside the others on the same host.

    Attributes:
        rank, world_size: of the process group.
        weights: a checksum of the parameters after the update of `step`.
        batch: a checksum of the newest batch; "" when it is not known.
        peers: how many other ranks were compared with at that step.
        differing: ranks whose weights differ.
        same_batch: ranks that were given the same batch.
        same_gradient: ranks whose weights differ although their gradients were the same.
        is_wrapped: whether the model is data-parallel.
    """

    step: int
    rank: int
    world_size: int
    weights: str = ""
    batch: str = ""
    peers: int = 0
    differing: list[int] = []
    same_batch: list[int] = []
    is_wrapped: bool = False
    same_gradient: list[int] = []
