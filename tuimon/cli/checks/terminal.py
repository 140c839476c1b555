"""The terminal: what it can show, by its environment and by what it answers when it is asked."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Mapping

from tuimon.cli.checks.check import BAD, OK, WARN, Check
from tuimon.model.text import plain

WIDE, HIGH = 80, 24  # below that panels are left out
_ANSWERS_WITHIN_S = 0.5  # of a terminal behind a slow link
_MAX_ANSWER = 4096
# DECRQM of mode 2026, then DA1, which every terminal answers: so one that knows no modes is told
# from one that is late.
_QUESTION = b"\x1b[?2026$p\x1b[c"
_DA1 = re.compile(rb"\x1b\[\?[\d;]*c")
_MODE = re.compile(rb"\x1b\[\?2026;(\d)\$y")


def check_terminal(environ: Mapping[str, str] = os.environ) -> list[Check]:
    """Everything about the terminal of this process."""
    if not all(
        stream is not None and stream.isatty() for stream in (sys.__stdin__, sys.__stdout__)
    ):
        said = "this is none: attach --once, ctl, ls and replies in JSON work without"
        return [Check("terminal", "terminal", OK, said), _letters(environ)]
    checks = [_kind(environ), _size(), _letters(environ), _colours(environ)]
    checks.append(_synchronized(ask(0, 1)))
    if environ.get("TMUX"):
        checks += _tmux()
    elif environ.get("STY"):
        todo = "tmux shows more; ctrl-a is screen's own key"
        checks.append(Check("terminal", "screen", WARN, "inside GNU screen", todo))
    return checks


def _kind(environ: Mapping[str, str]) -> Check:
    name = environ.get("TERM", "")
    if name in ("", "dumb", "unknown"):
        todo = "export TERM as your terminal names itself, such as xterm-256color"
        return Check("terminal", "TERM", BAD, name or "not set", todo)
    over = ", over ssh" if environ.get("SSH_CONNECTION") else ""
    return Check("terminal", "TERM", OK, plain(name, 40) + over)


def _size() -> Check:
    columns, lines = shutil.get_terminal_size((0, 0))
    said = f"{columns}×{lines}"
    if columns >= WIDE and lines >= HIGH:
        return Check("terminal", "size", OK, said)
    return Check("terminal", "size", WARN, said, f"{WIDE}×{HIGH} shows every panel")


def _letters(environ: Mapping[str, str]) -> Check:
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    if "utf-8" in locale.lower() or "utf8" in locale.lower():
        return Check("terminal", "UTF-8", OK, plain(locale, 40))
    said = f"the locale is {plain(locale, 40) or 'not set'}: charts are drawn in ASCII"
    return Check("terminal", "UTF-8", WARN, said, "export LANG=C.UTF-8, or attach --glyphs braille")


def _colours(environ: Mapping[str, str]) -> Check:
    if environ.get("NO_COLOR"):
        return Check("terminal", "colours", OK, "none, by NO_COLOR")
    name = environ.get("TERM", "")
    if environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        return Check("terminal", "colours", OK, "true colour")
    if "256" in name or "kitty" in name or "direct" in name:
        return Check("terminal", "colours", OK, "256")
    todo = "export TERM=xterm-256color where the terminal has them"
    return Check("terminal", "colours", WARN, "16, as far as TERM says", todo)


def _synchronized(answer: bytes) -> Check:
    name = "synchronized output"
    if not _DA1.search(answer):
        return Check("terminal", name, WARN, "the terminal did not answer", "pictures may flicker")
    found = _MODE.search(answer)
    if found and found[1] in (b"1", b"2", b"3"):
        return Check("terminal", name, OK, "yes")
    return Check("terminal", name, OK, "no: a picture may be seen half drawn")


def ask(source: int, target: int) -> bytes:
    """What the terminal answers; the terminal is left as it was."""
    try:
        before = termios.tcgetattr(source)
    except termios.error:
        return b""
    answer = b""
    try:
        tty.setcbreak(source, termios.TCSADRAIN)
        os.write(target, _QUESTION)
        until_s = time.monotonic() + _ANSWERS_WITHIN_S
        while not _DA1.search(answer) and len(answer) < _MAX_ANSWER:
            ready, _, _ = select.select([source], [], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                break
            got = os.read(source, 256)
            if not got:
                break
            answer += got
    except (OSError, termios.error):
        pass
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(source, termios.TCSADRAIN, before)
    return answer


def _tmux() -> list[Check]:
    checks = []
    clipboard = _tmux_option("set-clipboard")
    if clipboard and clipboard != "on":
        said = f"set-clipboard is {plain(clipboard, 20)}: copying an incident does not leave tmux"
        checks.append(Check("terminal", "tmux", WARN, said, "tmux set -g set-clipboard on"))
    delay = _tmux_option("escape-time")
    if delay.isdecimal() and int(delay) > 100:
        said = f"escape-time is {delay} ms: esc is felt late"
        checks.append(Check("terminal", "tmux", WARN, said, "tmux set -g escape-time 10"))
    return checks or [Check("terminal", "tmux", OK, "inside tmux")]


def _tmux_option(name: str) -> str:
    try:
        done = subprocess.run(
            ["tmux", "show", "-gv", name], capture_output=True, text=True, timeout=2, check=False
        )
        if done.returncode or not done.stdout.strip():
            done = subprocess.run(
                ["tmux", "show", "-sv", name],
                capture_output=True,
                text=True,
                timeout=2,
                check=False,
            )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
