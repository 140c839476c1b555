"""The viewer on a real terminal: it starts, survives, and leaves the terminal as it found it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.pty.terminal import PATIENCE_S, ROOT, Open, Terminal, is_restored

pytestmark = pytest.mark.timeout(120)

VIEWER = "tests/pty/viewer.py"


def test_it_draws_reacts_resizes_and_quits(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "live", environ={"COLUMNS": "80", "LINES": "24"})
    terminal.until(lambda text: "NaN gradients" in text and "device memory" in text)
    terminal.send(b"3")
    terminal.until("selected")
    terminal.send(b"/q_proj\r")
    terminal.until("1–2/2")
    terminal.send(b"\x1b")
    terminal.until(lambda text: "/q_proj" not in text)
    terminal.resize(80, 24)
    terminal.until(lambda text: "selected" not in text and "cost" in text)
    terminal.resize(50, 10)
    terminal.until("too small")
    terminal.resize(120, 40)
    terminal.send(b"1")
    terminal.until("device memory")
    terminal.send(b"?")
    terminal.until("q quits the viewer only")
    terminal.send(b"q")
    terminal.until(lambda text: "q quits the viewer only" not in text)
    terminal.send(b"q")
    assert terminal.end() == 0
    assert is_restored(terminal)
    assert "Traceback" not in terminal.text


def test_bytes_nobody_types_neither_end_it_nor_send_anything(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "live")
    terminal.until("pty-run")
    for noise in (b"\xff", b"\xe9", b"\x1b[999999999999R", b"\x1b[27;5;9999999~", b"\x1b[<99999M"):
        terminal.send(noise)
        terminal.pump(0.2)
    terminal.send(b"\x1b[200~" + b"yQy \xff" * 2000 + b"\x1b[201~")
    terminal.send(b"5")
    terminal.until("no command has been sent")
    assert b"\x1b[?1049l" not in terminal.raw
    terminal.send(b"q")
    assert terminal.end() == 0 and is_restored(terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signals_restore_the_terminal(open_terminal: Open, number: signal.Signals) -> None:
    terminal = open_terminal(VIEWER, "live")
    terminal.until("pty-run")
    os.kill(terminal.pid, number)
    assert terminal.end() == 128 + number
    assert is_restored(terminal)


def test_a_terminal_that_takes_nothing_can_still_be_left(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "live", size=(200, 60))
    terminal.until("pty-run")
    for _ in range(40):  # pictures nobody reads
        terminal.send(b"123t")
        time.sleep(0.05)
    os.kill(terminal.pid, signal.SIGTERM)
    terminal.code = os.waitstatus_to_exitcode(_status(terminal, os.WNOHANG, is_read=False))
    assert terminal.code == 128 + signal.SIGTERM


@pytest.mark.parametrize("program", ["live", "amid"])
def test_suspended_and_resumed_it_draws_again(open_terminal: Open, program: str) -> None:
    """At any moment: also where its own thread holds the lock of what it writes through."""
    terminal = open_terminal(VIEWER, program)
    if program == "live":
        terminal.until("pty-run")
        os.kill(terminal.pid, signal.SIGTSTP)
    assert os.WIFSTOPPED(_status(terminal, os.WNOHANG | os.WUNTRACED))
    terminal.pump(1.0)
    assert is_restored(terminal)
    terminal.screen.reset()
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.until(lambda text: "device memory" in text and "grad norm" in text)
    terminal.send(b"q")
    assert terminal.end() == 0


def test_ctrl_c_leaves_as_interrupted(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "live")
    terminal.until("pty-run")
    terminal.send(b"\x03")
    assert terminal.end() == 130 and is_restored(terminal)


def test_a_closed_terminal_ends_it_at_once(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "live")
    terminal.until("pty-run")
    used_s = terminal.cpu_s()
    terminal.hang_up()
    start = time.monotonic()
    while os.waitpid(terminal.pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() - start < 10, "still alive"
        assert terminal.cpu_s() - used_s < 3, "spins"
        time.sleep(0.02)
    terminal.code = 0


def test_a_defect_is_one_line_without_locals(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "crash")
    assert terminal.end() == 1
    assert is_restored(terminal)
    assert terminal.raw.count(b"\x1b[22;0t") == terminal.raw.count(b"\x1b[23;0t") == 1  # title
    after = terminal.raw.rsplit(b"\x1b[?1049l", 1)[1].decode()
    assert "the viewer failed (ValueError: a defect" in after and "the training goes on" in after
    assert "secret-in-a-local" not in terminal.raw.decode(errors="replace")
    assert "Traceback" not in after


def test_no_colour_means_no_colour_code(open_terminal: Open) -> None:
    import re

    terminal = open_terminal(VIEWER, "live", environ={"NO_COLOR": "1"})
    terminal.until("pty-run")
    terminal.send(b"3")
    terminal.until("selected")
    terminal.send(b"?")
    terminal.until("q quits the viewer only")
    sgr = re.findall(rb"\x1b\[([0-9;]*)m", bytes(terminal.raw))
    coloured = [one for one in sgr if re.search(rb"(^|;)(3[0-8]|4[0-8]|9[0-7]|10[0-7])", one)]
    assert coloured == []
    assert b"N" in terminal.raw


def test_an_ascii_locale_gets_ascii(open_terminal: Open) -> None:
    environ = {"LC_ALL": "C", "LANG": None, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    terminal = open_terminal(VIEWER, "live", environ=environ)
    terminal.until("pty-run")
    for key in (b"2", b"3", b"5", b"?"):
        terminal.send(key)
        terminal.pump(0.3)
    assert max(terminal.raw) < 128
    assert b"\\u" not in terminal.raw


def test_nothing_new_is_nothing_written(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "still")
    terminal.until("still-run")
    terminal.pump(1.0)
    assert terminal.pump(1.5) == 0


def test_a_terminal_that_cannot_show_it_gets_one_line(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "attach", environ={"TERM": "dumb"})
    assert terminal.end() == 2
    assert "TERM=dumb cannot show the live view" in terminal.text
    assert b"\x1b" not in terminal.raw


def test_without_a_terminal_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, VIEWER, "attach"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "attach --once" in done.stderr


def test_suspended_before_a_full_terminal_it_stops_and_goes_on(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "live", size=(200, 60))
    terminal.until("pty-run")
    for _ in range(40):  # pictures nobody reads
        terminal.send(b"123t")
        time.sleep(0.05)
    os.kill(terminal.pid, signal.SIGTSTP)
    assert os.WIFSTOPPED(_status(terminal, os.WNOHANG | os.WUNTRACED, is_read=False))
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.pump(1.0)
    terminal.send(b"1")
    terminal.until("device memory")
    terminal.send(b"q")
    assert terminal.end() == 0


def test_told_to_go_on_it_starts_nothing_twice(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "live")
    terminal.until("pty-run")
    threads = len(os.listdir(f"/proc/{terminal.pid}/task"))
    for _ in range(3):
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.pump(0.3)
    assert len(os.listdir(f"/proc/{terminal.pid}/task")) <= threads
    terminal.send(b"q")
    assert terminal.end() == 0 and is_restored(terminal)


def _status(terminal: Terminal, options: int, *, is_read: bool = True) -> int:
    """The status of a viewer that ends or stops, while its terminal is read or is not."""
    start = time.monotonic()
    while (ended := os.waitpid(terminal.pid, options))[0] == 0:
        assert time.monotonic() - start < PATIENCE_S, "hangs"
        if is_read:
            terminal.pump(0.05)
        time.sleep(0.01)  # a pump of a closed terminal returns at once
    return ended[1]
