"""What a user can get wrong: one line on stderr, the documented status, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuimon.errors import EXIT_CUT, EXIT_REFUSED
from tuimon.feed import registry


def tuimon(*argv: str, **environ: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tuimon", *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["--bogus"], 2, "--bogus"),
        (["bogus"], 2, "bogus"),
        (["run"], 2, "SCRIPT"),
        (["attach"], 2, "--once"),
        (["attach", "--once"], 3, "tuimon run"),
        (["attach", "--once", "nope"], 3, "nope"),
        (["attach", "--once", "\x1b[31mred"], 3, "no run"),
        (["ctl", "nope", "pause"], 3, "nope"),
        (["ctl", "nope", "pause", "--timeout", "x"], 2, "--timeout"),
        (["ctl", "nope", "clip", "on", "--max-norm", "nan"], 2, "max_norm"),
        (["ctl", "nope", "step", "0"], 2, "number of steps"),
        (["ctl", "nope", "clip", "sideways"], 2, "sideways"),
        (["ctl", "nope"], 2, "command"),
        (["ctl", "nope", "log"], 3, "nope"),
        (["ctl", "nope", "lr", "scale"], 2, "number"),
        (["ctl", "nope", "lr", "scale", "0"], 2, "factor"),
        (["ctl", "nope", "lr", "scale", "-1"], 2, "the factor is -1.0"),
        (["ctl", "nope", "lr", "release", "1"], 2, "no number"),
        (["explain", "log_zero"], 2, "did you mean log-zero"),
        (["run", "--report", "no/such/r.json", "x.py"], 125, "make it first"),
        (["ctl", "nope", "lr", "scale", "2", "--group", "1"], 2, "--group"),
        (["demo", "nope"], 2, "nope"),
        (["run", "--attach", "x.py"], 2, "terminal"),
    ],
)
def test_one_line_and_a_status(argv: list[str], status: int, words: str) -> None:
    code, out, err = tuimon(*argv)
    assert (code, out) == (status, "")
    assert len(err.splitlines()) == 1 and err.startswith("tuimon: ") and words in err
    assert "\x1b" not in err


def test_foreign_and_newer_runs(run_home: Path) -> None:
    info = registry.create_run(name="mine", argv=["x"], versions={})
    file = info.path / "run.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "format_version": 99}))
    for mirror in Path(os.environ["XDG_STATE_HOME"]).rglob("*.json"):
        mirror.unlink()
    code, _, err = tuimon("attach", "--once", info.id)
    assert (code, "99" in err, len(err.splitlines())) == (5, True, 1)
    if os.getuid() == 0:
        file.write_text(json.dumps(content))
        os.chown(info.path, 12345, -1)
        code, _, err = tuimon("ctl", info.id, "pause")
        assert (code, "belongs to" in err, len(err.splitlines())) == (4, True, 1)


def test_lists_for_scripts_and_closed_pipes() -> None:
    assert tuimon("ls", "--json") == (0, "[]\n", "")
    assert tuimon("--version")[0] == 0
    code, out, _ = tuimon("demo", "--help")
    assert code == 0 and "Scenarios:" in out
    for name, first in (("explode", "SGD a little"), ("nan-batch", "One NaN"), ("amp", "Mixed")):
        assert any(line.split()[:1] == [name] and first in line for line in out.splitlines())
    code, out, _ = tuimon("demo", "--list")
    assert code == 0 and "explode" in out
    for words in ("demo --list", "doctor"):
        words = f"{sys.executable} -m tuimon {words} | true; echo ${{PIPESTATUS[0]}}"
        quiet = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60)
        assert (quiet.stdout, quiet.stderr) == (f"{EXIT_CUT}\n", ""), words


def test_settings_of_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "say.py").write_text("print(open('/proc/self/cmdline').read())")

    def run(text: str, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        (place / "tuimon.toml").write_text(text)
        return subprocess.run(
            [sys.executable, "-m", "tuimon", *argv],
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "TUIMON_SCRIBE": "0", **environ},
        )

    held = '[run]\non_non_finite = "hold"\n'
    assert "--on_non_finite=hold" in run(held, "run", "say.py").stdout
    assert "--on_non_finite" not in run(held, "run", "--on-non-finite", "continue", "say.py").stdout
    wrong = run('[run]\non_non_finite = "explode"\n', "run", "say.py")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert len(wrong.stderr.splitlines()) == 1 and "tuimon.toml" in wrong.stderr
    assert run("[run", "ls").returncode == 0
    assert run("[run", "run", "say.py", TUIMON_DISABLE="1").returncode == 0


def test_an_output_that_takes_no_more_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tuimon", "explain", "log-zero"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == EXIT_REFUSED
    assert done.stderr == "tuimon: cannot write the output: No space left on device\n"
