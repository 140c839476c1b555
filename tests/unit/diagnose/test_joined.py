"""What the records of several ranks say together: whose the fault is, and who holds up whom."""

from __future__ import annotations

import math

from tuimon.diagnose.engine import Engine
from tuimon.diagnose.joined import Joined, Member
from tuimon.diagnose.stragglers import Stragglers
from tuimon.model.records import BadTensor, LayerTable, Loss, Step

NAN = math.nan


def member(rank: int, *, own_loss: bool) -> Member:
    """A rank of a data-parallel training whose gradients go bad at step 3 by the reduction."""
    engine = Engine(rank)
    engine.see(LayerTable(0, ["w"]))
    for step in range(3):
        engine.see(Step(step, 0, loss=1.0, grad_norm=1.0))
    if own_loss:
        engine.see(Loss(3, NAN))
    bad = [BadTensor("gradient", "w", 1, 0, 0, 4)]
    loss = NAN if own_loss else 1.0
    engine.see(Step(3, 0, loss=loss, grad_norm=NAN, bad=bad, bad_total=1))
    engine.see(Loss(4, NAN))
    engine.see(Step(4, 0, loss=NAN, grad_norm=NAN, bad=bad, bad_total=1))
    engine.close()
    return Member(rank, engine)


def test_the_rank_whose_own_loss_was_bad_first_is_guilty():
    joined = Joined([member(0, own_loss=False), member(1, own_loss=True)])
    assert (joined.bad_step, set(joined.guilty)) == (3, {1})
    assert joined.findings and {each.where.rank for each in joined.findings} == {1}
    assert {each.rank for each in joined.symptoms} == {0, 1}, "what was seen stays"


def test_nobody_is_accused_where_only_gradients_were_bad():
    joined = Joined([member(0, own_loss=False), member(1, own_loss=False)])
    assert joined.bad_step == 3 and not joined.guilty
    assert joined.findings, "they are told all the same"


def look(own_s: dict[int, float], *, often: int = 1) -> int | None:
    found = Stragglers()
    told = None
    for step in range(60):
        for rank, part_s in own_s.items():
            slow = part_s if step % often == 0 else min(own_s.values())
            found.add(rank, Step(step, 0, step_s=0.05, data_s=slow / 2, forward_s=slow / 2))
        if step % 20 == 19:
            told = found.look(list(own_s)) or told
    return None if told is None else told.rank


def test_the_rank_that_the_others_wait_for():
    assert look({0: 0.01, 1: 0.03, 2: 0.011}) == 1
    assert look({0: 0.01, 1: 0.011, 2: 0.012}) is None, "nearly alike"
    assert look({0: 0.0001, 1: 0.0003}) is None, "nobody notices in a step of 50 ms"
    assert look({0: 0.01, 1: 0.03}, often=2) is None, "now and then is not persistent"
    assert look({0: 0.03}) is None
