"""What the silence of a training means: the states of a viewer, each with a sentence for a person.

Pure: a moment and what is known of the run in, a `Standing` out.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from tuimon.model.records import System
from tuimon.model.text import plain
from tuimon.model.units import count, duration_s
from tuimon.view.frame import (
    CUT_OFF,
    GONE,
    HELD,
    LATE,
    LIVE,
    LOADING,
    OTHER_VERSION,
    PAUSED,
    RECONNECTING,
    SILENT,
    UNWATCHED,
    Exit,
)
from tuimon.view.source import SourceStatus
from tuimon.view.store import Standing

LATE_AFTER_S, LATE_FACTOR = 2.0, 5.0  # times the 95th percentile of recent step times
SILENT_AFTER_S, SILENT_FACTOR = 10.0, 20.0
# Before the first step a script loads data, builds and compiles; that takes its time.
FIRST_LATE_AFTER_S, FIRST_SILENT_AFTER_S = 30.0, 120.0
READINGS_STALE_AFTER_S = 15.0  # the scribe reads once a second

STAYS = "the picture stays, q leaves"
MORE = ", W other runs, `tuimon report`"  # of what has ended by itself and is kept
_NO_SCRIBE = "the scribe has ended: no readings, findings, history and report from here on"
_DELETED = (
    "its run folder was deleted: the training goes on, seen but out of reach for commands and new "
    "viewers"
)


@dataclass(frozen=True)
class Signs:
    """What there is to judge by.

    Attributes:
        was_connected: records have been read before.
        was_caught_up: everything written had been read at least once.
        step, last_step_s: newest step and its unix time.
        usual_slowest_s: 95th percentile of recent step times.
        started_s: unix time the run began.
        goodbye: how the training itself said it ends.
        not_finite: what is not finite at its end, and since when; "" for nothing.
        watch_off: why tuimon has switched itself off there, where it has.
    """

    pid: int
    was_connected: bool
    was_caught_up: bool
    step: int | None
    last_step_s: float | None
    usual_slowest_s: float | None
    started_s: float
    goodbye: Exit | None
    watch_off: str = ""
    not_finite: str = ""


def fresh_readings(now_s: float, state: str, system: System | None) -> System | None:
    """The readings to show at `now_s`: old ones of a run that goes on say so and nothing else."""
    if system is None or state in (LOADING, GONE):
        return system
    age_s = now_s - system.time_s
    if age_s <= READINGS_STALE_AFTER_S:
        return system
    return System(system.time_s, device_note=f"no reading for {duration_s(round(age_s))}")


def judge(now_s: float, status: SourceStatus, signs: Signs) -> Standing:
    """How the run stands at `now_s` (unix time)."""
    if status.problem:
        detail = f"{plain(status.problem)}; the training is not disturbed"
        return Standing(OTHER_VERSION, detail, lost=status.lost)
    if signs.goodbye is not None or (not status.alive and status.caught_up):
        return _gone(status, signs)
    if status.link:
        detail = f"relay lost, {plain(status.link)}; the picture is the last one"
        return Standing(RECONNECTING, detail, status.link_lost_for_s, lost=status.lost)
    if not status.connected:
        return _unconnected(status, signs)
    if not (status.caught_up or signs.was_caught_up):
        return Standing(LOADING, "reading what the training has written so far", lost=status.lost)
    if not status.alive:
        detail = "the training has ended; reading its last words"
        return Standing(LOADING, detail, lost=status.lost)
    if status.deleted:
        detail = f"{_DELETED}; `kill -INT {signs.pid}` ends it"
        return Standing(CUT_OFF, detail, lost=status.lost)
    if status.word == UNWATCHED:
        return Standing(UNWATCHED, _unwatched(signs), lost=status.lost)
    where = "before its first update" if signs.step is None else f"after step {count(signs.step)}"
    if status.word == PAUSED:
        detail = f"paused {where}, before the next update: resume it, or let it do one step"
        detail = "; ".join([detail, *left_behind(status)])
        return Standing(PAUSED, detail, lost=status.lost)
    if status.word == HELD:
        detail = f"held at the scene {where}: look at the layers and events, then resume it"
        return Standing(HELD, detail, lost=status.lost)
    return _moving(now_s, status, signs)


def left_behind(status: SourceStatus) -> list[str]:
    """Who should be there beside the training, and is not."""
    words = [_NO_SCRIBE] if status.scribe_has_left else []
    if status.lost_spawner:
        words.append(
            f"pid {status.lost_spawner}, which spawned it, is gone: "
            "Q or `tuimon ctl RUN stop` ends the rest"
        )
    return words


def _unwatched(signs: Signs) -> str:
    where = "from its beginning" if signs.step is None else f"after step {count(signs.step)}"
    why = f" ({plain(signs.watch_off, 300)})" if signs.watch_off else ""
    return (
        f"tuimon switched its watch off {where} by an error of its own{why}: the training goes on, "
        "but no step is seen and no command gets there; to watch it, mend that and start it again"
    )


def _moving(now_s: float, status: SourceStatus, signs: Signs) -> Standing:
    since_s = max(signs.last_step_s or signs.started_s, status.changed_s)
    silent_s = max(0.0, now_s - since_s) if status.caught_up else 0.0
    waited = duration_s(silent_s)
    if signs.step is None:
        late_s, silent_after_s = FIRST_LATE_AFTER_S, FIRST_SILENT_AFTER_S
        what = f"no step yet after {waited}"
        why = "loading, building or compiling takes its time"
    else:
        usual_s = signs.usual_slowest_s or 0.0
        late_s = max(LATE_AFTER_S, LATE_FACTOR * usual_s)
        silent_after_s = max(SILENT_AFTER_S, SILENT_FACTOR * usual_s)
        usual = f" (usually {duration_s(usual_s)})" if usual_s else ""
        what = f"no step for {waited}{usual}"
        why = "an evaluation, a checkpoint or a slow batch"
    state, detail = LIVE, ""
    if silent_s > silent_after_s:
        ask = f"`py-spy dump --pid {signs.pid}` shows where it is"
        state, detail = SILENT, f"alive, but {what}: {why}, or it hangs; {ask}"
    elif silent_s > late_s:
        state, detail = LATE, f"{what}: {why}; nothing to do yet"
    elif signs.step is None:
        detail = f"{what}: {why}"
    detail = "; ".join(filter(None, (*left_behind(status), detail)))
    return Standing(state, detail, silent_s, lost=status.lost)


def _unconnected(status: SourceStatus, signs: Signs) -> Standing:
    if not status.alive:
        exit_ = status.exit or Exit("killed", None, "its records are gone")
        detail = f"{_how(exit_, signs)}; its records were deleted, so there is nothing to show"
        return Standing(GONE, detail, exit=exit_, lost=status.lost)
    if signs.was_connected:
        detail = "the ring of the run was replaced or removed; it is opened again when it is back"
        return Standing(RECONNECTING, detail, lost=status.lost)
    detail = "the training is starting: its records are read as soon as it writes them"
    return Standing(LOADING, detail, lost=status.lost)


def _gone(status: SourceStatus, signs: Signs) -> Standing:
    exit_ = signs.goodbye or status.exit
    if exit_ is None:
        exit_ = Exit("killed", None, "it left no last word")
    exit_ = structs.replace(exit_, not_finite=signs.not_finite)
    then = STAYS + (MORE if exit_.kind in ("ok", "stopped") else "")
    if status.deleted:
        then = f"its run folder was deleted, `tuimon ls` tells what was recorded; {STAYS}"
    detail = f"{_how(exit_, signs)}; {then}"
    return Standing(GONE, detail, exit=exit_, lost=status.lost)


def _how(exit_: Exit, signs: Signs) -> str:
    where = "before its first step" if signs.step is None else f"after step {count(signs.step)}"
    why = f": {plain(exit_.detail, 300)}" if exit_.detail else ""
    code = "" if exit_.code is None else f" with status {exit_.code}"
    match exit_.kind:
        case "ok":
            if exit_.not_finite:
                return f"the training ended{code} {where}; {exit_.not_finite}"
            return f"the training ended normally{code} {where}"
        case "stopped":
            return f"the training was stopped on request {where}{why}"
        case "exception":
            return f"the training ended by an exception{code} {where}{why}"
        case _ if exit_.code is None and "killed" in exit_.detail:  # the scribe's own sentence
            whose = "the training" if exit_.detail.startswith("ended") else "the training ended:"
            return f"{whose} {plain(exit_.detail, 300)}"
        case _:
            return f"the training was killed or crashed{code} {where}{why}"
