"""What one walk over the graph of a loss finds before its backward; a part of `records.Batch`."""

from __future__ import annotations

import msgspec

MAX_KINDS = 64
MAX_USES = 4
MAX_TERMS = 8


class LossTerm(msgspec.Struct, frozen=True, array_like=True):
    """One summand of a loss, and how it became one number.

    Attributes:
        op: name of the node that made it one number, "SumBackward0"; of the last node that was
            seen where none did.
        reduction: "sum" | "mean" | "" where it is not known.
        elements: how many numbers were reduced; None where it is not known.
        factor: product of the constants that it was multiplied with afterwards.
    """

    op: str
    reduction: str = ""
    elements: int | None = None
    factor: float = 1.0


class GraphSeen(msgspec.Struct, frozen=True, array_like=True):
    """The graph of one loss.

    Attributes:
        nodes: how many were visited.
        is_whole: whether those are all.
        kinds: name of a node without number, "Sqrt" -> how many, at most `MAX_KINDS` names.
        uses: (parameter, how often it enters the graph), the most used first.
        terms: the summands of the loss.
        functions: classes of hand-written functions.
    """

    nodes: int
    is_whole: bool = True
    kinds: dict[str, int] = {}
    uses: list[tuple[str, int]] = []
    terms: list[LossTerm] = []
    functions: list[str] = []
