"""What the screen of the ranks says of each, also where there is little room."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.tui.driving import driven
from tests.tui.full import full_frame
from tuimon.model.ranks import RankRow, RankRows

HOW = "killed (kill, scheduler, no memory) or crashed"
KILLED = f"ended without a last word after step 12,345: {HOW}"


def row(rank: int, **changes: object) -> RankRow:
    known = {"rank": rank, "pid": 48213 + rank, "state": "running", "step": 12345, "loss": 1.25}
    return RankRow(**{**known, "grad_norm": 0.87, "step_s": 0.2, "own_s": 0.04, **changes})


async def test_what_is_wrong_is_told_in_full() -> None:
    rows = [
        row(0, state="gone", exit=KILLED),
        row(1, state="held", loss=math.nan, bad="loss", bad_step=12345),
        row(2, differs=[0, 1, 3]),
        row(3, own_s=0.17, straggles=True),
    ]
    frame = replace(full_frame(), ranks=RankRows(0.0, rows, 8, 1))
    async with driven(size=(80, 24)) as viewer:
        await viewer.show(frame)
        shown = await viewer.press("8", "j")
        lines = [" ".join(line.strip("│ ").split()) for line in shown.splitlines()]
    at = lines.index("rank 1 the first that was bad: loss not finite at step 12,345")
    assert lines[at - 1] == "", "the selected rank first, below the table"
    assert "ranks ─" in shown and "4 of 8 ranks are on this host" in shown
    assert "> 1 12,345 NaN 0.87 200 ms 40 ms held first bad" in lines
    assert "3 12,345 1.25 0.87 200 ms 170 ms running straggles" in lines
    assert KILLED in " ".join(lines[at:])
    assert "rank 2 its weights differ from those of ranks 0, 1, 3" in lines


async def test_many_ranks_leave_a_table_to_go_through() -> None:
    rows = [row(rank, differs=[5]) for rank in range(64)]
    frame = replace(full_frame(), ranks=RankRows(0.0, rows, 64))
    async with driven(size=(80, 24)) as viewer:
        await viewer.show(frame)
        shown = await viewer.press("8", *("j" * 9))
    assert "rank 9" in shown and ">    9" in shown and shown.count("running") == 3


async def test_figures_of_different_steps_say_so() -> None:
    rows = [row(0), row(1, step=12343), row(2, figures_step=12340), row(3, step=None, loss=None)]
    frame = replace(full_frame(), ranks=RankRows(0.0, rows, 4))
    async with driven(size=(80, 24)) as viewer:
        await viewer.show(frame)
        shown = await viewer.press("8")
        lines = [" ".join(line.strip("│ ").split()) for line in shown.splitlines()]
        assert "> 0 12,345 1.25 0.87 200 ms 40 ms running" in lines
        assert "1 12,343 1.25 0.87 200 ms 40 ms running 2 behind" in lines
        assert "2 12,340 1.25 0.87 200 ms 40 ms running 5 behind" in lines, "of that step they are"
        assert "3 – – 0.87 200 ms 40 ms running" in lines
        assert "4 ranks, up to 5 steps apart" in shown
        assert "loss and norm are those of the step in the same row" in shown
        await viewer.show(replace(frame, ranks=RankRows(0.0, rows[:1] * 2, 2)))
        assert "apart" not in await viewer.press("j") and "behind" not in viewer.text
