"""Another user of the same machine, played by a forked child."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534  # uid and gid that own nothing
STRICT = "TUIMON_TESTS_STRICT"  # set where a test that cannot be run must not pass unnoticed


def _need_root() -> None:
    if os.getuid() != 0:
        words = "needs root, to become another user"
        if os.environ.get(STRICT):
            pytest.fail(words)
        pytest.skip(words)


@pytest.fixture
def as_another_user() -> Callable[[Callable[[], Any]], Any]:
    """Calls a function in a child that is another user; returns what it returns, as JSON has it."""
    _need_root()
    return another_user


def another_user(action: Callable[[], Any]) -> Any:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            answer = {"said": action()}
        except BaseException:
            answer = {"failed": traceback.format_exc()}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = json.loads(pipe.read() or b'{"failed": "it ended without a word"}')
    os.waitpid(pid, 0)
    assert "failed" not in answer, answer["failed"]
    return answer["said"]


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that everybody may enter and nobody else may write to, as /dev/shm is entered."""
    folder = Path(tempfile.mkdtemp(prefix="tuimon-security-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file that nothing of ours may write to, with a link leading there."""
    file = tmp_path / "victim"
    file.write_text("untouched")
    yield file
    assert file.read_text() == "untouched" and file.stat().st_size == 9
