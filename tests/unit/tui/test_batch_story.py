"""What the data screen accuses: the batch itself, never what a broken model made of it."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from tests.tui.full import batch
from tuimon.model.records import Batch
from tuimon.tui.stories.batch_story import checks, is_suspicious

GOOD = batch(400, bad=False)


def with_losses(**changes: Any) -> Batch:
    """The good batch with another look at its loss."""
    return structs.replace(
        GOOD, why="suspicion", losses=[structs.replace(GOOD.losses[0], **changes)]
    )


def words(found: Batch) -> str:
    return "\n".join(text for line in checks(found, [GOOD, found]) for text, _ in line.parts)


def test_a_batch_is_not_accused_of_what_a_broken_model_made_of_it() -> None:
    """Once the weights are NaN every prediction is, whatever the data hold."""
    bad = structs.replace(GOOD.losses[0].prediction, nan=320, low=None, high=None)
    found = with_losses(prediction=bad)
    assert not is_suspicious(found)
    assert "prediction: 320 NaN" in words(found) and "the batch itself is finite" in words(found)
    made = structs.replace(GOOD.inputs[0], nan=4, is_computed=True)
    assert not is_suspicious(structs.replace(GOOD, inputs=[made]))


def test_a_batch_is_accused_of_what_lies_in_it() -> None:
    assert is_suspicious(batch(400, bad=True))
    target = GOOD.losses[0].target
    assert target is not None
    found = with_losses(target=structs.replace(target, nan=1))
    assert is_suspicious(found) and "itself is finite" not in words(found)
    assert is_suspicious(with_losses(outside=2))
