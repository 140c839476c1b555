"""Does tuimon leave the numbers alone? Each script of a folder is run bare and under tuimon.

    python -m tests.cases.transparency FOLDER [--only C11,H05] [--jobs 1] [--reports DIR]

Compared bit for bit at the end of each run: parameters, optimizer state, loss scale, random
streams, what was printed and the exit status. A watched run that published no update of a script
that trains to its end proves nothing and fails too. Where a difference is found the script runs
bare once more: one that does not repeat itself proves nothing and is listed as such.

`--reports` keeps the report of each watched run, for `tests.cases.score`.

Both runs of a script are processes of their own that run side by side: what takes the time is
importing torch, and a shared, warmed process would leave out the part of tuimon that runs first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tuimon.feed import registry
from tuimon.feed.ring import RingReader

FINGERPRINT = Path(__file__).with_name("fingerprint.py")
LIMIT_S = 900.0
FINE = ("same", "does not repeat itself")


def fingerprint(script: Path, *, watched: bool, reports: Path | None = None) -> dict[str, str]:
    """What one run leaves behind: digests, output and exit status, and whether it was watched."""
    wanted = ["--report", str(reports / f"{script.stem}.json")] if reports else []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "digest.json"
        command = [sys.executable, *(["-m", "tuimon", "run", *wanted] if watched else [])]
        home = {"TUIMON_DIR": f"{folder}/runs", "XDG_STATE_HOME": f"{folder}/state"}
        run = subprocess.run(
            [*command, str(FINGERPRINT), str(target), str(script)],
            env={**os.environ, **home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        found: dict[str, str] = json.loads(target.read_text()) if target.exists() else {}
        lines = run.stderr.decode(errors="replace").replace(folder, "").splitlines()
        found["exit"] = str(run.returncode)
        found["stdout"] = run.stdout.decode(errors="replace")
        found["stderr"] = "\n".join(line for line in lines if not line.startswith("tuimon:"))
        if watched and run.returncode == 0 and _trains(found):
            found["watched"] = str(_has_steps(Path(folder)))
        return found


def _trains(found: dict[str, str]) -> bool:
    return any(name[0].isdigit() and "Scaler" not in name for name in found)


def _has_steps(folder: Path) -> bool:
    """Whether any run in a folder has published an update."""
    for file in folder.glob("runs/**/run.json"):
        reader = RingReader(registry.load(file.parent).ring())
        step = reader.status().step
        reader.close()
        if step is not None:
            return True
    return False


def verdict(script: Path, reports: Path | None = None) -> tuple[str, list[str]]:
    """("same" | "differs" | "does not repeat itself" | "was not watched", the keys that differ)."""
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(fingerprint, script, watched=how, reports=reports) for how in (False, True)
        ]
        bare, watched = (run.result() for run in both)
    if watched.pop("watched", "True") != "True":
        return "was not watched", []
    keys = differing(bare, watched)
    if not keys:
        return "same", []
    if set(differing(bare, fingerprint(script, watched=False))) >= set(keys):
        return "does not repeat itself", keys
    return "differs", keys


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Names of what is not the same in two runs."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="beginnings of file names, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at once, two processes each")
    parser.add_argument("--reports", type=Path, help="where the watched runs' reports are kept")
    options = parser.parse_args()
    reports = options.reports.absolute() if options.reports else None
    if reports is not None:
        reports.mkdir(parents=True, exist_ok=True)
    wanted = tuple(filter(None, options.only.split(","))) or ("",)
    scripts = [p for p in sorted(options.folder.rglob("*.py")) if p.name.startswith(wanted)]
    counts: dict[str, int] = {}
    began_s = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(partial(verdict, reports=reports), scripts)
        for script, (how, keys) in zip(scripts, found, strict=True):
            counts[how] = counts.get(how, 0) + 1
            print(f"{script.stem:<40} {how} {', '.join(keys)}".rstrip(), flush=True)
    told = ", ".join(f"{count} {how}" for how, count in sorted(counts.items())) or "nothing ran"
    print(f"{len(scripts)} scripts: {told}; {time.monotonic() - began_s:.0f} s")
    return int(not scripts or any(how not in FINE for how in counts))


if __name__ == "__main__":
    sys.exit(main())
