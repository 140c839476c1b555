"""Runs of this host: what has ended goes on ageing, and no longer lasts longer."""

from __future__ import annotations

import time

from msgspec import structs

from tuimon.feed.registry import ExitInfo, create_run
from tuimon.feed.ring import RingWriter
from tuimon.model.records import ENDED
from tuimon.view import runs


def test_a_run_that_has_ended_tells_how_long_it_ran_and_how_long_ago_that_was() -> None:
    info = create_run(name="n", argv=["a"])
    assert runs.ended_at(info) is None, "it has no ring"
    ring = RingWriter.create(info.ring(), 1 << 16, start_ticks=info.ranks[0].start_ticks)
    ring.set_state(ENDED, 9)
    ring.close()
    ended_s = runs.ended_at(info)
    assert ended_s is not None and abs(time.time() - ended_s) < 30
    over = structs.replace(info, started_at_s=ended_s - 240.0, exit=ExitInfo("ok", 0))

    def list_runs() -> list[object]:
        return [structs.replace(over, ranks=[structs.replace(over.ranks[0], start_ticks=1)])]

    now_s = ended_s + 60.0
    watched = runs.Runs(list_runs=list_runs, clock=lambda: now_s)  # type: ignore[arg-type]
    for later_s in (60.0, 140.0):
        now_s = ended_s + later_s
        (glance,) = watched.poll()
        assert (round(glance.age_s), round(glance.ended_s or 0)) == (240, round(later_s))
    watched.close()
