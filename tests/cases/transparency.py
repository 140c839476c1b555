"""Does tuimon leave the numbers alone? Each script of a folder is run bare and under tuimon.

    python -m tests.cases.transparency FOLDER [--only C11,H05]

Compared bit for bit at the end of each run: parameters, optimizer state, loss scale, random
streams, and what was printed. Two bare runs come first where a difference is found: a script
that does not repeat itself proves nothing and is listed as such.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

FINGERPRINT = Path(__file__).with_name("fingerprint.py")


def fingerprint(script: Path, *, watched: bool, timeout_s: float = 600) -> dict[str, str]:
    """What one run leaves behind: digests, output and exit status."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "digest.json"
        command = [sys.executable]
        if watched:
            command += ["-m", "tuimon", "run"]
        command += [str(FINGERPRINT), str(target), str(script)]
        run = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)
        found: dict[str, str] = json.loads(target.read_text()) if target.exists() else {}
        found["exit"] = str(run.returncode)
        found["stdout"] = run.stdout.decode(errors="replace")
        return found


def verdict(script: Path) -> tuple[str, list[str]]:
    """("same" | "differs" | "does not repeat itself", the keys that differ)."""
    bare, watched = fingerprint(script, watched=False), fingerprint(script, watched=True)
    keys = sorted(k for k in bare.keys() | watched.keys() if bare.get(k) != watched.get(k))
    if not keys:
        return "same", []
    again = fingerprint(script, watched=False)
    chaotic = {k for k in bare.keys() | again.keys() if bare.get(k) != again.get(k)}
    if chaotic >= set(keys):
        return "does not repeat itself", keys
    return "differs", keys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="beginnings of file names, with commas")
    options = parser.parse_args()
    wanted = tuple(filter(None, options.only.split(","))) or ("",)
    scripts = [p for p in sorted(options.folder.rglob("*.py")) if p.name.startswith(wanted)]
    counts: dict[str, int] = {}
    for script in scripts:
        how, keys = verdict(script)
        counts[how] = counts.get(how, 0) + 1
        print(f"{script.stem:<40} {how} {', '.join(keys)}", flush=True)
    print(", ".join(f"{count} {how}" for how, count in sorted(counts.items())))
    return int("differs" in counts or not scripts)


if __name__ == "__main__":
    sys.exit(main())
