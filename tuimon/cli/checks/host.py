"""The host: where runs can lie and what they cost there, the user's folders, torch, devices."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tuimon import __version__
from tuimon.cli.checks.check import BAD, OK, WARN, Check
from tuimon.config import read_settings
from tuimon.errors import NoRoom, TuimonError
from tuimon.feed import paths
from tuimon.hw.nvidia import NvidiaReader
from tuimon.model.units import duration_s, size_bytes

OLDEST_TORCH = (2, 4)
SAFE_TORCH = (2, 10)  # see tuimon.inspect.torch_file
_PARAMETERS = 300  # of a small transformer
_PUBLISHED = 300  # steps of the little measurement: a few milliseconds
_SCRIBE_BYTES = 60 << 20


def check_host(environ: Mapping[str, str] = os.environ) -> list[Check]:
    """Everything about this host."""
    python = ".".join(map(str, sys.version_info[:3]))
    checks = [Check("host", "tuimon", OK, f"{__version__} on Python {python}, {sys.platform}")]
    checks += _switches(environ)
    checks += _shared_memory(environ)
    checks += [_state_folder(), _config(environ), _torch(), _devices(environ), _cores()]
    return checks


def _switches(environ: Mapping[str, str]) -> list[Check]:
    checks = []
    if environ.get("TUIMON_DISABLE"):
        checks.append(
            Check("host", "TUIMON_DISABLE", WARN, "set: trainings are not watched", "unset it")
        )
    if environ.get("TUIMON_SCRIBE") == "0":
        said = "0: no thinned history, no device readings, no report, no recording"
        checks.append(Check("host", "TUIMON_SCRIBE", WARN, said, "unset it"))
    return checks


def _shared_memory(environ: Mapping[str, str]) -> list[Check]:
    """The folders that may hold runs, in the order in which they are tried."""
    roots = paths.run_roots(environ)
    checks: list[Check] = []
    for place, root in enumerate(roots):
        try:
            said = _usable(root, chosen=bool(environ.get("TUIMON_DIR")))
        except NoRoom as problem:
            is_last = place == len(roots) - 1
            words, _, todo = str(problem).partition("; ")
            level = BAD if is_last else WARN
            checks.append(Check("host", "shared memory", level, words, todo or "set TUIMON_DIR"))
            continue
        free = paths.free_bytes(_existing(root))
        level = OK if free >= paths.ROOMY_BYTES and not checks else WARN
        todo = ""
        if free < paths.ROOMY_BYTES:
            todo = "give the container more (docker run --shm-size=1g), or set TUIMON_DIR"
        checks.append(Check("host", "shared memory", level, said, todo))
        with contextlib.suppress(OSError, TuimonError):
            checks.append(_cost(_existing(root)))
        break
    return checks


def _usable(root: Path, *, chosen: bool) -> str:
    """What a run in this folder would get.

    Raises:
        NoRoom: none can be there.
    """
    existing = _existing(root)
    if existing == root:
        _check_owner(root, chosen=chosen)
    elif not existing.is_dir():
        raise NoRoom(f"{existing} is no folder; set TUIMON_DIR")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise NoRoom(f"{existing} cannot be written; set TUIMON_DIR to a folder of yours")
    if not paths.is_local(existing):
        kind = paths.file_system(existing)
        raise NoRoom(f"{root} is on {kind}, which cannot share memory; set TUIMON_DIR")
    ring = paths.ring_bytes(existing)
    free = size_bytes(paths.free_bytes(existing))
    return f"{root}: {free} free, a ring of {size_bytes(ring)} for each process"


def _check_owner(root: Path, *, chosen: bool) -> None:
    found = root.lstat()
    if stat.S_ISLNK(found.st_mode) and not chosen:
        raise NoRoom(f"{root} is a link; remove it, or set TUIMON_DIR to a folder of yours")
    found = root.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NoRoom(f"{root} is no folder; set TUIMON_DIR")
    if found.st_uid != os.getuid():
        raise NoRoom(f"{root} belongs to user {found.st_uid}; set TUIMON_DIR to a folder of yours")
    if chosen and found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise NoRoom(f"anybody may write to {root}; set TUIMON_DIR to a folder of yours")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(each for each in (folder, *folder.parents) if os.path.lexists(each))


def _cost(root: Path) -> Check:
    """What publishing a step takes here, in a ring of its own that is removed again."""
    from tuimon.feed.codec import encode
    from tuimon.feed.ring import RingWriter
    from tuimon.model.records import Step

    norms = bytes(4 * _PARAMETERS)
    with tempfile.TemporaryDirectory(prefix=".tuimon-doctor-", dir=root) as folder:
        ring = RingWriter.create(Path(folder) / "try.ring", paths.MIN_RING_BYTES)
        try:
            began_s = time.perf_counter()
            for step in range(_PUBLISHED):
                ring.publish(encode(Step(step=step, time_ns=0, loss=1.0, norms=norms)))
            each_s = (time.perf_counter() - began_s) / _PUBLISHED
        finally:
            ring.close()
    said = (
        f"publishing a step of {_PARAMETERS} parameters takes {duration_s(each_s)} here; beside "
        f"that the norms, and {size_bytes(_SCRIBE_BYTES)} of a process of its own for each run"
    )
    return Check("host", "cost", OK, said)


def _state_folder() -> Check:
    folder = paths.state_folder()
    existing = _existing(folder)
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Check("host", "state folder", OK, str(folder))
    said = f"{existing} cannot be written: no ledger and no recording outlive a run"
    return Check("host", "state folder", WARN, said, "set XDG_STATE_HOME to a folder of yours")


def _config(environ: Mapping[str, str]) -> Check:
    try:
        settings = read_settings(environ=environ)
    except TuimonError as error:
        words, _, todo = str(error).partition("; ")
        return Check("host", "tuimon.toml", BAD, words, todo)
    is_set = any(settings.by_command().values()) or settings.price_per_hour is not None
    return Check("host", "tuimon.toml", OK, "read" if is_set else "none, or nothing in it")


def _torch() -> Check:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        said = "not installed here: this environment can watch, but neither train nor scan .pt"
        return Check("host", "torch", WARN, said, 'pip install "tuimon[torch]" to train here')
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    said = f"{version}, {_build()}"
    if numbers < OLDEST_TORCH:
        return Check("host", "torch", BAD, said, "tuimon needs torch 2.4 or newer")
    if numbers < SAFE_TORCH:
        todo = "scan refuses .pt files below torch 2.10: its weights_only has known holes"
        return Check("host", "torch", WARN, said, todo)
    if "CPU" in said and Path("/dev/nvidia0").exists():
        return Check("host", "torch", WARN, said, "this host has a GPU: install the CUDA build")
    return Check("host", "torch", OK, said)


def _build() -> str:
    """What torch was built for, read from its version file: importing it takes seconds."""
    text = ""
    with contextlib.suppress(OSError, ValueError, ImportError, AttributeError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin:
            text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    for name, words in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        if found := re.search(rf"^{name}\b[^=\n]*=\s*['\"]([\w.]+)['\"]", text, re.MULTILINE):
            return f"built for {words} {found[1]}"
    return "built for the CPU alone"


def _devices(environ: Mapping[str, str]) -> Check:
    reader = NvidiaReader(environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        readings = reader.read()
    finally:
        reader.close()
    if readings:
        names = ", ".join(f"{each.index}: {each.name}" for each in readings[:8])
        if reader.note:
            return Check("host", "NVML", WARN, f"{names}; {reader.note}")
        return Check("host", "NVML", OK, names)
    if not Path("/dev/nvidia0").exists() and not Path("/dev/nvidiactl").exists():
        return Check("host", "NVML", OK, reader.note or "no NVIDIA device on this host")
    todo = "run nvidia-smi as this user; in a container start it with --gpus all"
    return Check("host", "NVML", WARN, reader.note or "no device answers", todo)


def _cores() -> Check:
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if count > 1:
        return Check("host", "cores", OK, f"{count} for this user's processes")
    todo = "the scribe shares it with the training, at low priority; TUIMON_SCRIBE=0 leaves it out"
    return Check("host", "cores", WARN, "one core", todo)
