"""`tuimon run` is the script: same output, same tracebacks, same exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.bare import both, python, tuimon_run
from tests.process.stand_in import until
from tuimon.cli import status_of
from tuimon.feed import registry
from tuimon.view.frame import UNWATCHED
from tuimon.view.session import watch_run

ENDS = {
    "plain": "print('done')",
    "status": "import sys\nsys.exit(3)",
    "text": "import sys\nsys.exit('it is over')",
    "none": "raise SystemExit",
    "os_exit": "import os\nos._exit(7)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
    "interrupt": "def f():\n    raise KeyboardInterrupt\nf()",
    "exception": "def f():\n    return 1 / 0\n\nf()",
    "chain": """
def f():
    try:
        {}['a']
    except KeyError as error:
        raise ValueError('\\x1b[31m') from error
def g():
    try:
        f()
    except ValueError:
        raise ExceptionGroup('both', [TypeError('x'), OSError('y')])
g()
""",
    "recursion": "def f(n):\n    return f(n + 1)\nf(0)",
    "syntax": "print('never'\nx = 1",
    "encoding": "x = 1\n",
    "hook": """
import sys
sys.excepthook = lambda kind, error, traceback: print(kind.__name__, traceback.tb_lineno)
1 / 0
""",
    "bad_hook": """
import sys
def hook(kind, error, traceback):
    raise TypeError('in the hook')
sys.excepthook = hook
1 / 0
""",
    "leaving_hook": "import sys\nsys.excepthook = lambda *_: sys.exit(9)\n1 / 0",
    "threads": """
import atexit, sys, threading
atexit.register(lambda: print('last', '__file__' in globals()))
def work():
    raise ValueError('in a thread')
def leave():
    sys.exit(5)
for target in (work, leave):
    thread = threading.Thread(target=target, name='t')
    thread.start()
    thread.join()
print('end')
""",
    "atexit_after_error": """
import atexit
atexit.register(lambda: print('__file__' in globals()))
1 / 0
""",
}


@pytest.mark.hazard(33)
@pytest.mark.parametrize("end", ENDS)
def test_ends_as_under_python(end: str, tmp_path: Path) -> None:
    source = ENDS[end].encode()
    (tmp_path / "script.py").write_bytes(b"# \xff\n" + source if end == "encoding" else source)
    bare, watched = both(tmp_path, "script.py")
    if end not in ("syntax", "encoding"):
        assert len(watched.ours) >= 1
    assert {"status": 3, "os_exit": 7, "killed": -9, "interrupted": -2, "leaving_hook": 9}.get(
        end, bare.status
    ) == bare.status


ABOUT_ITSELF = """
import __main__, os, pickle, sys
class Thing:
    pass
def about():
    main = vars(__main__)
    names = ('__name__', '__file__', '__package__', '__cached__', '__doc__', '__annotations__')
    print({name: main.get(name, 'missing') for name in names})
    print(type(main['__loader__']).__name__, main['__spec__'] and main['__spec__'].name)
    print(type(main['__builtins__']), sorted(main), main is globals())
    print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys._xoptions, sys.warnoptions)
    print(pickle.loads(pickle.dumps(Thing())).__class__ is Thing, sys.stdin.read(), os.getcwd())
    print('torch' in sys.modules, 'numpy' in sys.modules, sys.stdout.line_buffering)
    print(sys.excepthook is sys.__excepthook__)
if __name__ == '__main__':
    about()
"""


def test_is_itself(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ABOUT_ITSELF)
    (tmp_path / "random.py").write_text("raise RuntimeError('shadows a module of the library')")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("print('package', __name__)")
    (package / "module.py").write_text(ABOUT_ITSELF + "\nif len(__import__('sys').argv) > 3: 1 / 0")
    (package / "link.py").symlink_to(tmp_path / "script.py")
    both(tmp_path, "script.py", "a", "--report", "--", "-m")
    both(tmp_path, "./package/../script.py", options=("-u", "-X", "dev", "-Wignore", "-W", "once"))
    both(tmp_path, "package/link.py", options=("-P",))
    both(tmp_path, "-m", "package.module", "--name", "x")
    both(tmp_path, "-m", "package.module", "fails", "with", "three")


def test_what_cannot_be_started(tmp_path: Path) -> None:
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "folder").mkdir()
    (tmp_path / "ok.py").write_text("print('ran')")
    for argv, words in [
        (("missing.py",), "does not exist"),
        (("folder",), "is a folder"),
        (("binary.py",), "not a Python script"),
        (("-",), "standard input"),
        (("-m", "nowhere"), "No module named nowhere"),
        (("-m", "json.nowhere"), "No module named json.nowhere"),
        (("--report", "missing/report.json", "ok.py"), "does not exist"),
        (("--report", "folder", "ok.py"), "is a folder"),
    ]:
        refused = tuimon_run(tmp_path, *argv)
        assert refused.status == 125, refused
        assert words in refused.ours[-1]
        assert (refused.stdout, refused.theirs) == ("", "")
    usage = tuimon_run(tmp_path, "--bogus", "ok.py")
    assert (usage.status, len(usage.stderr.splitlines()), usage.stdout) == (2, 1, "")


KILLS_ITS_SCRIBE = """
import glob, os, signal, time
def scribe():
    for file in glob.glob(os.environ['TUIMON_DIR'] + '/*/scribe.pid'):
        return open(file).read().strip()
until = time.monotonic() + 60
while not scribe() and time.monotonic() < until:
    time.sleep(0.01)
os.kill(int(scribe()), signal.SIGKILL)
"""


def test_a_report_that_will_never_be_written_is_not_promised(tmp_path: Path) -> None:
    (tmp_path / "kills.py").write_text(KILLS_ITS_SCRIBE)
    (tmp_path / "none.py").write_text("")
    asked = ("--report", "report.json")
    killed = tuimon_run(tmp_path, *asked, "kills.py", scribe=True)
    unwanted = tuimon_run(tmp_path, *asked, "none.py")
    for done, why in ((killed, "the scribe is gone"), (unwanted, "TUIMON_SCRIBE=0")):
        assert done.status == 0, done
        assert any(line.startswith(f"tuimon: no report: {why}") for line in done.ours), done
        assert "will be" not in done.stderr
    assert not (tmp_path / "report.json").exists()


def test_switched_off_or_without_room(tmp_path: Path, run_home: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint('ran', sys.orig_argv[1:])\nsys.exit(4)")
    bare = python(tmp_path, "script.py", "x")
    off = tuimon_run(tmp_path, "script.py", "x", environ={"TUIMON_DISABLE": "1"})
    assert off == bare
    assert not run_home.exists()
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere", str(tmp_path / "file")):
        unwatched = tuimon_run(tmp_path, "script.py", "x", environ={"TUIMON_DIR": place})
        assert (unwatched.stdout, unwatched.theirs) == (bare.stdout, bare.stderr)
        assert (unwatched.status, len(unwatched.ours)) == (4, 1), unwatched


def test_stderr_may_be_closed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint(sys.stderr, flush=True)\nsys.exit(6)")
    words = f"{sys.executable} -m tuimon run script.py 2>&-"
    done = subprocess.run(
        words, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (6, "None")


SPAWNS = """
import multiprocessing, os, sys
def square(x):
    return x * x, __name__, 'tuimon' in sys.modules
if __name__ == '__main__':
    for method in ('spawn', 'fork', 'forkserver'):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, [(a, b, c and method == 'fork') for a, b, c in pool.map(square, [1, 2])])
    child = os.fork()
    if child == 0:
        raise ValueError('in the child')
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_children_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNS.replace("c and method == 'fork'", "method"))
    _, watched = both(tmp_path, "script.py")
    assert len(watched.ours) == len(set(watched.ours))


@pytest.mark.hazard(32)
def test_signals_reach_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('asked') or os._exit(11))\n"
        "print(os.getpid(), flush=True)\n"
        "while True: signal.pause()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tuimon", "run", "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TUIMON_SCRIBE": "0"},
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 11


def test_a_watch_that_could_not_begin_is_told_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of tuimon's own: the script goes on, and nobody waits for steps or answers."""
    (tmp_path / "torch.py").write_text("")  # from which nothing can be imported
    (tmp_path / "script.py").write_text("import sys, torch\nprint('on')\nprint(sys.stdin.read())")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tuimon", "run", "--total-steps", "400", "script.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TUIMON_SCRIBE": "0"},
    )
    assert process.stdout is not None and process.stdout.readline() == "on\n"
    info = registry.find_run(None)
    session = watch_run(info)
    frame = until(session, lambda frame: frame.state == UNWATCHED)
    assert "ImportError" in frame.state_detail and "start it again" in frame.state_detail
    assert [event.kind for event in frame.events] == ["watch-off"]
    assert frame.total_steps == 400, "as the command line says"
    session.close()

    capsys.readouterr()
    assert status_of(["ctl", info.id, "pause"]) == 4
    assert "switched its watch off" in capsys.readouterr().err
    assert status_of(["ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "unwatched"
    assert status_of(["ls"]) == 0
    assert f"tuimon doctor {info.id}" in capsys.readouterr().out
    assert status_of(["doctor", info.id]) == 6
    told = capsys.readouterr().out
    assert "ImportError" in told and "start it again" in told and "py-spy" not in told

    out, err = process.communicate("the end", timeout=30)
    assert (process.returncode, out) == (0, "the end\n")
    assert "switched its watch off" in err.splitlines()[-1], "not that there was nothing to watch"
