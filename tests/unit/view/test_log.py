"""One incident has one headline, the one nearest to where the trouble shows first."""

from __future__ import annotations

import pytest

from tuimon.model.records import Event
from tuimon.view.log import INCIDENT_STEPS, Log


def headline(*events: tuple[int | None, str]) -> tuple[int | None, str]:
    log = Log()
    for step, kind in events:
        log.add_event(Event(step, 0.0, "critical", kind, f"{kind} text"))
    assert log.alert is not None
    return log.alert.step, log.alert.kind


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        ([(9, "non-finite-optimizer-state"), (9, "non-finite-loss")], (9, "non-finite-loss")),
        ([(9, "non-finite-loss"), (9, "non-finite-gradient")], (9, "non-finite-loss")),
        ([(9, "non-finite-gradient"), (10, "non-finite-loss")], (9, "non-finite-gradient")),
        ([(9, "non-finite-loss"), (12, "non-finite-loss")], (9, "non-finite-loss")),
        (
            [(9, "non-finite-loss"), (10 + INCIDENT_STEPS, "non-finite-parameter")],
            (10 + INCIDENT_STEPS, "non-finite-parameter"),
        ),
        ([(9, "non-finite-loss"), (None, "tap-disarmed")], (None, "tap-disarmed")),
    ],
)
def test_what_follows_a_nan_is_no_news(
    events: list[tuple[int | None, str]], shown: tuple[int | None, str]
) -> None:
    assert headline(*events) == shown


def test_a_long_incident_stays_one() -> None:
    steps = [(step, "non-finite-gradient") for step in range(0, 500, INCIDENT_STEPS)]
    assert headline(*steps) == (0, "non-finite-gradient")
