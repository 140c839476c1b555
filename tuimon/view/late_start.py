"""How a viewer that comes late takes over the thinned history of the run."""

from __future__ import annotations

import numpy as np

from tuimon.feed.history import HeatHistory, History, SeriesHistory
from tuimon.model.records import AnyRecord
from tuimon.view.series import Series
from tuimon.view.store import RunState


def apply_history(state: RunState, history: History) -> None:
    """Fill a fresh state with everything up to `history.up_to_sequence`."""
    _apply_newest(state, history)
    for name, series in history.series.items():
        if name not in state.series:
            state.series[name] = Series(name)
            seed_series(state.series[name], series)
    for heat in sorted(history.heats, key=lambda each: each.epoch):
        table = history.tables.get(heat.epoch)
        if table is None or len(table.names) != heat.layers:
            state.count_lost("no layer table")
            continue
        state.apply(table)
        _seed_heat(state, heat)
    if history.tables:
        state.apply(history.tables[max(history.tables)])
    for event in history.events:
        state.apply(event)
    state.milestones.resume(history.milestones)
    if history.last_step is not None:
        state.note_step(history.last_step)
    for symptom in history.symptoms:
        state.apply(symptom)
    for command in history.commands:
        state.apply(command)
    state.amp.resume(history)
    examined: list[AnyRecord] = [*history.autopsies, *history.findings, *history.trials]
    for each in examined:
        state.apply(each)
    if history.crash is not None:
        state.apply(history.crash)
    for reason, count in history.totals.lost.items():
        state.count_lost(f"history: {reason}", count)
    if history.totals.events_dropped:
        state.count_lost("older events", history.totals.events_dropped)
    if history.goodbye is not None:
        state.apply(history.goodbye)


def _apply_newest(state: RunState, history: History) -> None:
    """Records of which the newest tell, and what was seen before them."""
    for record in (
        history.hello,
        history.facts,
        *history.readings[:-1],
        history.system,
        *history.batches,
        *history.older_samples,
        *history.memory.values(),
        history.governor,
        history.breakpoints,
        history.snapshots,
        history.ranks,
        *history.samples,
        *history.inspections,
    ):
        if record is not None:
            state.apply(record)


def seed_series(series: Series, history: SeriesHistory) -> None:
    """Begin a series with what a thinned history holds of it."""
    flags = np.frombuffer(history.flags, np.uint8)
    filled = np.flatnonzero(flags)
    series.seed(
        history.first_step + filled * history.width,
        np.frombuffer(history.low, "<f8")[filled],
        np.frombuffer(history.high, "<f8")[filled],
        mean=np.frombuffer(history.mean, "<f8")[filled],
        last=np.frombuffer(history.last, "<f8")[filled],
        flags=flags[filled],
        counts=np.frombuffer(history.count, "<u4")[filled],
        newest_step=history.newest_step,
        width=history.width,
    )


def _seed_heat(state: RunState, history: HeatHistory) -> None:
    assert state.layers.heat is not None
    norms = np.frombuffer(history.norms, "<f4").reshape(-1, history.layers)
    flags = np.frombuffer(history.flags, np.uint8).reshape(-1, history.layers)
    state.layers.heat.seed(history.first_step, history.width, norms, flags)
