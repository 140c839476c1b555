"""A run seen over a real SSH server on loopback: the same screens and commands, lost and back.

One server and one training for everything; left out where no SSH server is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.job import ROOT, free_port, wait_for
from tests.pty.terminal import Terminal
from tuimon.feed import registry

pytestmark = pytest.mark.timeout(180)

SSHD = shutil.which("sshd", path=os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin")))
HERE = [sys.executable, "-m", "tuimon"]
ENDLESS = """
import time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""


class Server:
    """A server of this user's own: its port, its keys, and nothing of the machine's settings.

    Attributes:
        ssh: words of a client that gets in.
        via: what `--via` is given.
    """

    def __init__(self, folder: Path) -> None:
        assert SSHD is not None
        folder.mkdir(mode=0o700)
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(words, check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        if os.getuid() == 0:  # where the server gives up its rights; it insists on this one
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        port = free_port()
        names = ("TUIMON_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")
        environ = " ".join(f"{name}={os.environ[name]}" for name in names)
        (folder / "sshd").write_text(
            f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile {folder}/pid\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
            "AuthenticationMethods publickey\nPermitRootLogin yes\nPrintMotd no\n"
            f"SetEnv PYTHONPATH={ROOT} LC_ALL=C.UTF-8 {environ}\n"
        )
        known = f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}"
        (folder / "known").write_text(known)
        (folder / "ssh").write_text(
            f"Host box\nHostName 127.0.0.1\nPort {port}\nIdentityFile {folder}/user\n"
            f"IdentitiesOnly yes\nUserKnownHostsFile {folder}/known\nBatchMode yes\n"
        )
        self.ssh = ["ssh", "-F", str(folder / "ssh")]
        self.via = " ".join([*self.ssh, "box", *HERE, "relay"])
        self.log = folder / "log"
        self.process = subprocess.Popen(
            [SSHD, "-D", "-E", str(self.log), "-f", str(folder / "sshd")], stdin=subprocess.DEVNULL
        )
        wait_for(lambda: self._listens(port) or self.process.poll() is not None, 20.0)
        assert self.process.poll() is None, self.log.read_text()

    def sessions(self) -> list[psutil.Process]:
        """What the server has started for those that are connected."""
        return psutil.Process(self.process.pid).children()

    def end(self) -> None:
        for each in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.kill()
        self.process.wait()

    @staticmethod
    def _listens(port: int) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return True
        return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no SSH server is installed")
    made = Server(tmp_path / "ssh")
    yield made
    made.end()


@pytest.fixture
def training(tmp_path: Path, light: None) -> Iterator[str]:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    process = subprocess.Popen(
        [*HERE, "run", "--name", "far-away", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: bool(registry.list_runs()) or process.poll() is not None, 60.0)
    yield registry.list_runs()[0].id
    process.send_signal(signal.SIGKILL)
    process.wait()


def words_of(shown: str) -> set[str]:
    """What is said on a screen, without figures, which go on, and what is cut off at an edge."""
    return set(re.findall(r"(?<![\w…])[a-z]{4,}(?![\w…])", shown))


def test_over_a_real_server(server: Server, training: str) -> None:
    def tuimon(*words: str) -> str:
        done = subprocess.run([*HERE, *words], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), (done.stdout, done.stderr)
        return done.stdout

    # The training has only just begun: the command waits for it.
    assert '"applied"' in tuimon("ctl", "--via", server.via, training, "pause", "--json")
    assert "far-away" in tuimon("attach", "--once", "--via", server.via, training)

    # The viewer here and its relay there, and the viewer there on a terminal that SSH brings here.
    far = Terminal("-m", "tuimon", "attach", "--via", server.via, training)
    login = [*server.ssh, "-tt", "box", *HERE, "attach", training]
    there = Terminal("-c", f"import os; os.execvp('ssh', {login!r})")
    try:
        for terminal in (far, there):
            assert "far-away" in terminal.until("PAUSED")
        same_screens(far, there)
        far.send(b"<")
        for terminal in (far, there):
            terminal.until("learning rate 0.001 → 0.0005")
        there.send(b" ")
        for terminal in (far, there):
            terminal.until("LIVE")

        lost_and_back(server, far)
        far.send(b" ")
        for terminal in (far, there):
            terminal.until("PAUSED")
            terminal.send(b"q")
        assert far.end() == 0 and there.end() == 0
    finally:
        far.close()
        there.close()
    wait_for(lambda: not server.sessions(), 20.0)


def same_screens(one: Terminal, other: Terminal) -> None:
    """Every screen says the same on both."""
    for keys in (b"2", b"5", b"?", b"\x1b", b"1"):
        for terminal in (one, other):
            terminal.send(keys)
        until_s = time.monotonic() + 20.0
        while True:
            for terminal in (one, other):
                terminal.pump(0.15)
            differ = words_of(one.text) ^ words_of(other.text)
            if not differ:
                break
            assert time.monotonic() < until_s, (keys, differ, one.text, other.text)


def lost_and_back(server: Server, far: Terminal) -> None:
    """The connection of the viewer is cut at the server's side."""
    (session,) = [
        each
        for each in server.sessions()
        if any("relay" in below.cmdline() for below in each.children(recursive=True))
    ]
    session.kill()
    far.until("RECONNECTING")
    far.until("LIVE")
