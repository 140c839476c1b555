"""While an update is held, the causes are those that it would lead to; nothing has happened yet."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from tests.unit.diagnose.series import step, training
from tests.unit.diagnose.test_rules import examined, nan, note
from tuimon.diagnose.engine import Engine
from tuimon.feed.codec import decode, encode
from tuimon.model.autopsy import BACKWARD
from tuimon.model.records import HELD_UPDATE, NAN, Pending, Step, Symptom
from tuimon.model.trials import REFUTED, TrialRecord

LAST = 60


def held() -> tuple[Engine, Step]:
    """A learning rate that grows until a gradient is NaN, and the update that waits there."""
    engine = Engine()
    told = training(range(LAST), lambda at: 2.0 if at < 40 else 2.0 * 3.0 ** (at - 40))
    for record in told:
        engine.see(record)
    grown = note(-1e16, 1e16)
    backward = examined("aten::native_layer_norm_backward", [grown], nan(), phase=BACKWARD)
    engine.see(replace(backward, step=LAST, trigger="non-finite-gradient"))
    waits = step(LAST, 1e9, math.nan, flags=bytes([NAN] * 6), lrs=[7e4])
    return engine, waits


def pending(waits: Step) -> Pending:
    record = decode(encode(Pending(replace(waits, left_out=HELD_UPDATE))))
    assert isinstance(record, Pending)
    return record


def causes(engine: Engine) -> list[str]:
    return [each.cause for each in engine.findings]


def test_the_cause_is_known_while_it_can_still_be_decided_about() -> None:
    engine, waits = held()
    before = list(engine.symptoms)
    assert causes(engine) == []
    assert engine.see(pending(waits)) == []
    assert "lr-too-high" in causes(engine) and engine.symptoms == before
    told = [each.id for each in engine.findings]
    symptoms = engine.see(waits)
    assert "non-finite-gradient" in {each.kind for each in symptoms}
    assert [each.id for each in engine.findings] == told


def test_what_is_tested_during_a_hold_counts_there() -> None:
    engine, waits = held()
    engine.see(pending(waits))
    (rate,) = [each for each in engine.findings if each.cause == "lr-too-high"]
    engine.see(TrialRecord("id", "lr-too-high", "a tenth of it", REFUTED, "no", step=rate.step))
    assert {each.cause: each.status for each in engine.findings}["lr-too-high"] == REFUTED


def test_an_update_that_is_left_out_after_all_is_told_as_such() -> None:
    engine, waits = held()
    engine.see(pending(waits))
    engine.see(replace(waits, skipped=True, left_out="somebody asked for it"))
    kinds = {each.kind: each.severity for each in engine.symptoms}
    assert kinds["non-finite-gradient"] == "warning"


@pytest.mark.parametrize("ends", [False, True])
def test_without_a_cause_it_is_unknown_and_so_it_is_where_the_hold_was_the_end(ends: bool) -> None:
    engine = Engine()
    for record in training(range(3), lambda at: 1.0):
        engine.see(record)
    waits = step(3, 1.0, math.nan, flags=bytes([NAN] * 6))
    engine.see(pending(waits))
    if ends:
        assert [s for s in engine.close() if isinstance(s, Symptom)] == []
    assert causes(engine) == ["unknown"]
    assert any("the update is held" in line for line in engine.findings[0].evidence)
    if not ends:
        engine.see(waits)
        assert causes(engine) == []  # until the run has ended
