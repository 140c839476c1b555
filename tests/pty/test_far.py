"""Terminals as they are far away: multiplexers, slow lines, windows that are dragged, tabs."""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pty.terminal import PATIENCE_S, ROOT, Open, Terminal, is_restored

pytestmark = pytest.mark.timeout(120)

VIEWER = "tests/pty/viewer.py"
_TROUBLE, _NO_STATE = b"\x1b]9;4;2;0\x07", b"\x1b]9;4;0;0\x07"  # of a tab
SLOW_BYTES_PER_S = 6000  # a bad link


class Tmux:
    """A server of its own with one window, in which a viewer runs."""

    def __init__(self, folder: Path) -> None:
        self._base = ["tmux", "-S", str(folder / "socket"), "-f", os.devnull]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
        program = f"cd {ROOT} && {sys.executable} {VIEWER} live; echo left with $?; exec cat"
        command = ["new-session", "-d", "-x", "120", "-y", "40", program]
        subprocess.run([*self._base, *command], check=True, env=environ)

    def do(self, *words: str) -> str:
        """What a command of tmux prints."""
        done = subprocess.run([*self._base, *words], check=True, capture_output=True, text=True)
        return done.stdout

    def until(self, words: str) -> str:
        """Wait until the window shows it, or its title."""
        end = time.monotonic() + PATIENCE_S
        while words not in (shown := self.do("display-message", "-p", "#{pane_title}")):
            if words in (shown := self.do("capture-pane", "-p")):
                break
            assert time.monotonic() < end, f"never saw {words!r}:\n{shown}"
            time.sleep(0.05)
        return shown


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux here")
    made = Tmux(tmp_path)
    yield made
    made.do("kill-server")


def test_within_tmux(tmux: Tmux) -> None:
    shown = tmux.until("device memory")
    assert "╭─ loss" in shown and "●" in shown
    tmux.until("✖ 0% pty-run - tuimon")
    tmux.do("send-keys", "3")
    tmux.until("selected")
    tmux.do("resize-window", "-x", "80", "-y", "24")
    tmux.until("cost")
    assert "selected" not in tmux.do("capture-pane", "-p")
    tmux.do("send-keys", "1")
    tmux.until("grad norm")
    tmux.do("send-keys", "q")
    shown = tmux.until("left with 0")
    assert "loss" not in shown, "the main screen is back"
    left = "#{mouse_any_flag}#{alternate_on} #{pane_title}"
    assert tmux.do("display-message", "-p", left).startswith("00 ")
    assert "tuimon" not in tmux.do("display-message", "-p", left)


def test_a_slow_line_gets_fewer_pictures_and_keys_still_act(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "live")
    terminal.until("pty-run")
    for key in (b"3", b"1", b"2", b"1") * 3:  # pictures that nobody will ever see whole
        terminal.send(key)
        _sip(terminal)
    terminal.send(b"3")
    start = time.monotonic()
    while "selected" not in terminal.text:
        assert time.monotonic() - start < 6, "old pictures stand in a queue"
        _sip(terminal)
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM and is_restored(terminal)


def _sip(terminal: Terminal) -> None:
    """Take in what a slow line brings in a twentieth of a second."""
    if select.select([terminal.fd], [], [], 0.05)[0]:
        terminal.feed(os.read(terminal.fd, SLOW_BYTES_PER_S // 20))
    time.sleep(0.05)


def test_a_storm_of_sizes_ends_in_the_right_picture(open_terminal: Open) -> None:
    terminal = open_terminal(VIEWER, "still")
    terminal.until("still-run")
    terminal.pump(0.5)
    calm = terminal.text
    dice = random.Random(3)
    for _ in range(60):
        terminal.resize(dice.randint(1, 220), dice.randint(1, 70))
        terminal.pump(0.01)
    terminal.resize(120, 40)
    end = time.monotonic() + PATIENCE_S
    while terminal.text != calm:
        assert time.monotonic() < end, terminal.text
        terminal.pump(0.1)
    used_s = terminal.cpu_s()
    terminal.pump(0.5)
    assert terminal.cpu_s() - used_s < 0.4
    terminal.send(b"q")
    assert terminal.end() == 0 and is_restored(terminal)
    begun, ended = b"\x1b[?2026h", b"\x1b[?2026l"
    assert terminal.raw.count(begun) == terminal.raw.count(ended) > 0
    assert begun + b"\x1b[1;1H" + ended not in terminal.raw, "an update without a cell"


def test_the_key_for_suspending_gives_all_back_and_fg_takes_it_again(
    open_terminal: Open, tmp_path: Path
) -> None:
    (tmp_path / "tuimon").mkdir()
    (tmp_path / "tuimon" / "tuimon.toml").write_text("[attach]\ntab = true\n")
    terminal = open_terminal(VIEWER, "live", environ={"XDG_CONFIG_HOME": str(tmp_path)})
    terminal.until("pty-run")
    _until_raw(terminal, _TROUBLE)
    terminal.send(b"/")  # a dialog that takes keys
    terminal.pump(0.2)
    terminal.send(b"\x1a")
    end = time.monotonic() + PATIENCE_S
    while not (status := os.waitpid(terminal.pid, os.WNOHANG | os.WUNTRACED))[0]:
        assert time.monotonic() < end, "ctrl+z does nothing"
        terminal.pump(0.05)
    assert os.WIFSTOPPED(status[1]) and is_restored(terminal)
    assert terminal.raw.count(b"\x1b[22;0t") == terminal.raw.count(b"\x1b[23;0t") == 1
    assert terminal.raw.rfind(_NO_STATE) > terminal.raw.rfind(_TROUBLE)
    terminal.screen.reset()
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.until("device memory")
    terminal.send(b"\x1b")
    terminal.until("q quit")
    terminal.send(b"q")
    assert terminal.end() == 0
    assert terminal.raw.count(b"\x1b[22;0t") == terminal.raw.count(b"\x1b[23;0t") == 2
    assert terminal.raw.count(_TROUBLE) == 2 and terminal.raw.count(_NO_STATE) == 2
    assert terminal.raw.rfind(_NO_STATE) > terminal.raw.rfind(_TROUBLE)


def _until_raw(terminal: Terminal, wanted: bytes) -> None:
    end = time.monotonic() + PATIENCE_S
    while wanted not in terminal.raw:
        assert time.monotonic() < end, f"never wrote {wanted!r}"
        terminal.pump(0.05)


def test_the_linux_console_gets_what_its_fonts_and_its_kernel_know(open_terminal: Open) -> None:
    terminal = open_terminal(
        VIEWER, "live", environ={"TERM": "linux"}, size=(80, 24), answers=False
    )
    terminal.until("pty-run")
    for key in b"2356?":
        terminal.send(bytes([key]))
        terminal.pump(0.2)
    shown = bytes(terminal.raw).decode()
    arrows = "←↑→↓▲▼►◄↔"  # below the blank in code page 437
    strange = {char for char in shown if not _in_437(char) and char not in arrows}
    assert strange == set()
    assert re.findall(r"\x1b\](?!22;)", shown) == [], "no title, no tab"
    assert re.search(r"\x1b\[[0-9;]*(38|48);", shown) is None, "sixteen colours"
    assert "\x1b[?2026h" not in shown, "no synchronized output where nothing promises it"


def _in_437(char: str) -> bool:
    try:
        char.encode("cp437")
    except UnicodeEncodeError:
        return False
    return True
