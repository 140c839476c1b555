"""The runs: whether the one that is meant can be attached to, and what earlier ones have left."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tuimon.cli.checks.check import BAD, OK, WARN, Check
from tuimon.errors import TuimonError
from tuimon.feed import paths, private, registry
from tuimon.feed.codec import decode
from tuimon.feed.process import start_ticks
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.feed.ring import RingReader
from tuimon.model.records import (
    HELD,
    PAUSED,
    STATE_NAMES,
    UNWATCHED,
    WATCH_OFF,
    AnyRecord,
    Event,
    Facts,
    LayerTable,
    Step,
)
from tuimon.model.text import plain
from tuimon.model.units import count, duration_s, percent, size_bytes

SILENT_AFTER_S = 30.0
MANY_BYTES = 256 << 20  # of shared memory that nobody needs any more
_CONNECTS_WITHIN_S = 2.0
_TAIL_RECORDS = 1 << 16
_TAIL_S = 1.0


def check_runs(
    environ: Mapping[str, str] = os.environ, *, besides: RunInfo | None = None
) -> list[Check]:
    """What there is of this user's on this host and on others; `besides` has been looked at."""
    runs = registry.list_runs(environ)
    live = [run for run in runs if registry.is_alive(run)]
    named = ", ".join(f"{plain(run.name, 30)} ({run.id})" for run in live[-5:])
    checks = [
        Check("runs", "live runs", OK, named)
        if live
        else Check("runs", "live runs", OK, "none", "tuimon run script.py starts one")
    ]
    checks += [_leftovers(runs, environ), *_strays(environ), *_elsewhere()]
    for run in live:
        if besides is None or run.id != besides.id:
            odd = [each for each in check_run(run) if each.level != OK]
            checks += [replace(each, topic="runs", name=f"{run.id} {each.name}") for each in odd]
    return checks


def _leftovers(runs: list[RunInfo], environ: Mapping[str, str]) -> Check:
    dead = [run for run in runs if not registry.is_alive(run)]
    here = [run for run in dead if run.path.is_dir()]
    size = sum(_size_bytes(run.path) for run in here)
    said = f"{len(dead)} ended runs, {size_bytes(size)} in their folders"
    if size > MANY_BYTES:
        folders = ", ".join(sorted({str(run.path.parent) for run in here}))
        todo = f"swept after a day by the next run; remove those you do not need in {folders}"
        return Check("runs", "leftovers", WARN, said, todo)
    return Check("runs", "leftovers", OK, said)


def _size_bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for each in os.scandir(folder):
            with contextlib.suppress(OSError):
                total += each.stat(follow_symlinks=False).st_blocks * 512
    return total


def _strays(environ: Mapping[str, str]) -> list[Check]:
    """What in the folders of runs is no run that can be read."""
    checks = []
    for root in paths.run_roots(environ):
        try:
            folders = sorted(each for each in root.iterdir() if each.is_dir())
        except FileNotFoundError:
            continue
        except OSError as error:
            todo = "it must belong to you, with mode 0700"
            said = f"{root} cannot be read: {error.strerror}"
            checks.append(Check("runs", "run folders", BAD, said, todo))
            continue
        if environ.get("TUIMON_DIR"):  # which may hold other things of the user's
            folders = [each for each in folders if (each / "run.json").exists()]
        for folder in folders:
            checks += _stray(folder)
    return checks


def _stray(folder: Path) -> list[Check]:
    try:
        registry.load(folder)
        mode = folder.lstat().st_mode
    except TuimonError as error:
        words, _, todo = str(error).partition("; ")
        return [Check("runs", "run folders", WARN, words, todo or f"remove {folder}")]
    except OSError:
        return []  # swept meanwhile
    if stat.S_IMODE(mode) & 0o077:
        said = f"{folder} may be entered by others (mode {stat.S_IMODE(mode):04o})"
        return [Check("runs", "run folders", BAD, said, f"chmod 700 {folder}")]
    return []


def _elsewhere() -> list[Check]:
    """Runs whose mirror is here, because the home is shared, and whose memory is not."""
    host = socket.gethostname()
    names: set[str] = set()
    with contextlib.suppress(OSError):
        for file in (paths.state_folder() / "runs").glob("*-????????.json"):
            names.add(file.name.rpartition("-")[0])
    others = sorted(names - {host})
    if not others:
        return []
    some = ", ".join(plain(name, 40) for name in others[:5])
    todo = f'tuimon attach --via "ssh {plain(others[0], 40)}"'
    return [Check("runs", "other hosts", OK, f"runs of this user on {some}", todo)]


def check_run(info: RunInfo) -> list[Check]:
    """Why this run can, or cannot, be attached to, and what is known of it."""
    if info.host != socket.gethostname():
        todo = f'tuimon attach --via "ssh {plain(info.host, 40)}" {info.id}'
        return [Check("run", info.id, BAD, f"it runs on {plain(info.host, 40)}", todo)]
    checks = [_processes(info)]
    if not info.path.is_dir():
        said = f"its folder {info.folder} is gone or not visible here"
        todo = "in a container, share it: docker run --ipc=host, or the same TUIMON_DIR on both"
        return [*checks, Check("run", "folder", BAD, said, todo)]
    mode = stat.S_IMODE(info.path.stat().st_mode)
    checks.append(
        Check("run", "folder", BAD, f"mode {mode:04o}", f"chmod 700 {info.folder}")
        if mode & 0o077
        else Check("run", "folder", OK, info.folder)
    )
    if registry.is_alive(info):
        checks += [_scribe(info), _control(info)]
    for rank in info.ranks[:1]:
        checks += _ring(info, rank)
    return checks


def _processes(info: RunInfo) -> Check:
    alive = [each for each in info.processes if registry.rank_is_alive(each)]
    if not alive:
        todo = f"tuimon attach {info.id} still shows what it was; a new run needs tuimon run"
        return Check("run", "process", WARN, "it has ended", todo)
    pids = ", ".join(str(each.pid) for each in alive[:8])
    if pid := registry.lost_spawner(info):
        said = f"pid {pids}; the process that spawned it (pid {pid}) is gone"
        return Check("run", "process", WARN, said, f"tuimon ctl {info.id} stop ends the rest")
    missing = len(info.processes) - len(alive)
    if missing:
        said = f"pid {pids}; {missing} of {len(info.processes)} have ended"
        return Check("run", "process", WARN, said, f"tuimon attach {info.id}, screen 8, says how")
    return Check("run", "process", OK, f"pid {pids}")


def _scribe(info: RunInfo) -> Check:
    pid = 0
    with contextlib.suppress(OSError, ValueError):
        pid = int(private.read_small(info.path / "scribe.pid", 64).split()[0])
    if pid and start_ticks(pid) is not None:
        return Check("run", "scribe", OK, f"pid {pid}")
    log = info.path / "scribe.log"
    said = "it is gone" if pid else "there is none"
    return Check(
        "run",
        "scribe",
        WARN,
        f"{said}: no history for late viewers, no readings, no report",
        f"see {log}; TUIMON_SCRIBE=0 in the training's environment switches it off",
    )


def _control(info: RunInfo) -> Check:
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(_CONNECTS_WITHIN_S)
            link.connect(str(info.control))
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        todo = "watching works, commands do not: the training must be of this user and this host"
        return Check("run", "control socket", WARN, f"{info.control}: {why}", todo)
    return Check("run", "control socket", OK, "answers")


def _ring(info: RunInfo, rank: RankInfo) -> list[Check]:
    try:
        with contextlib.closing(RingReader(info.path / rank.ring)) as reader:
            status = reader.status()
            payloads = reader.read(_TAIL_RECORDS, max_s=_TAIL_S)
    except TuimonError as error:
        words, _, todo = str(error).partition("; ")
        return [Check("run", "ring", BAD, words, todo or "use the tuimon that the training uses")]
    records: list[AnyRecord] = []
    for payload in payloads:
        with contextlib.suppress(ValueError):
            records.append(decode(payload))
    state = STATE_NAMES.get(status.state, "running")
    quiet_s = time.time() - status.beat_ns / 1e9 if status.beat_ns else None
    said = f"{state}, step {count(status.step)}"
    level, todo = OK, ""
    waits = status.state in (PAUSED, HELD)
    if status.state == UNWATCHED:
        level, todo = BAD, "mend that and start it again: this one goes on, but unseen"
        off = next((e for e in records if isinstance(e, Event) and e.kind == WATCH_OFF), None)
        said = f"tuimon switched its watch off: {plain(off.detail, 300)}" if off else state
    elif waits:
        level, todo = WARN, f"tuimon ctl {info.id} resume"
    elif registry.rank_is_alive(rank) and quiet_s and quiet_s > SILENT_AFTER_S:
        level = WARN
        said += f", nothing published for {duration_s(quiet_s)}"
        todo = "it evaluates, compiles or hangs: py-spy dump --pid " + str(rank.pid)
    if status.dropped:
        said += f", {count(status.dropped)} records too large for the ring"
    return [Check("run", "ring", level, said, todo), *_instrumented(records)]


def _instrumented(records: list[AnyRecord]) -> list[Check]:
    facts = next((each for each in reversed(records) if isinstance(each, Facts)), None)
    table = next((each for each in reversed(records) if isinstance(each, LayerTable)), None)
    steps = [each for each in records if isinstance(each, Step)]
    checks = []
    if table is None:
        todo = "it is starting, or no optimizer has made a step: wait, then look again"
        checks.append(Check("run", "model", WARN, "no step and no layers yet", todo))
    else:
        modules = ", ".join(plain(each, 40) for each in facts.modules[:3]) if facts else ""
        said = f"{modules or 'model'}, {count(len(table.names))} parameters"
        checks.append(Check("run", "model", OK, said))
    if facts is not None:
        scaler = facts.scaler or "no GradScaler"
        devices = ", ".join(plain(each, 20) for each in facts.devices[:4])
        names = ", ".join(plain(each, 40) for each in facts.optimizers[:3])
        checks.append(Check("run", "instrumented", OK, f"{names}; {scaler}; {devices}"))
    both = [(each.cost_s, each.step_s) for each in steps if each.cost_s and each.step_s]
    if both:
        share = sum(cost for cost, _ in both) / sum(step for _, step in both)
        todo = "below a millisecond a step tuimon is felt: README, What it costs"
        level = WARN if share > 0.1 else OK
        said = f"{percent(share)} of step time over the last {len(both)} steps"
        checks.append(Check("run", "cost", level, said, todo if level == WARN else ""))
    return checks
