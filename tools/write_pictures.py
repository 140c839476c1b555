"""Make all pictures of the README from the real program: demos train, `tuimon attach` shows them.

    python tools/write_pictures.py [NAME…]

Takes two minutes. A test compares what of them does not depend on the run with what the program
draws now.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import screen_svg
from picture import Terminal

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, LINES = 120, 40
PATIENCE_S = 240.0


@dataclass(frozen=True)
class Picture:
    """One file in docs/.

    Attributes:
        until: what the screen shows when the run is where it is wanted; a regular expression.
        keys: pressed then.
        shows: what the picture must show; a regular expression.
    """

    name: str
    until: str
    keys: str
    shows: str


# By the script that trains; its pictures are taken in this order.
PICTURES = {
    "demo/explode.py --delay 0.03": (
        Picture("overview", r"step 1,1\d\d", "", r"LIVE"),
        Picture("layers", r"step 1,2[3-9]\d", "3jjj---", r"selected"),
        Picture("charts", r"LIVE", "2@1k\r", r"step 1,000"),
    ),
    "demo/nan_batch.py --delay 0.03": (Picture("incident", r"step 6[2-9]\d", "v", r"remedy"),),
}


def take(script: str, pictures: tuple[Picture, ...]) -> None:
    """Train, attach, and write these pictures."""
    tuimon = [sys.executable, "-m", "tuimon"]
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {name: home for name in ("TUIMON_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        training = subprocess.Popen([*tuimon, "run", *script.split()], cwd=ROOT, **quiet)
        terminal = Terminal([*tuimon, "attach"], COLUMNS, LINES)
        try:
            for each in pictures:
                terminal.wait_for(each.until, PATIENCE_S)
                for key in each.keys:
                    terminal.send(key)
                    terminal.read(0.5)
                terminal.wait_for(each.shows, PATIENCE_S)
                terminal.settle(1.5)
                target = ROOT / "docs" / f"{each.name}.svg"
                target.write_text(screen_svg.render(terminal.screen), encoding="utf-8")
                print(f"{target.relative_to(ROOT)}\n{screen_svg.text(terminal.screen)}")
        finally:
            terminal.close()
            training.send_signal(signal.SIGINT)
            training.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these")
    wanted = parser.parse_args().names
    for script, pictures in PICTURES.items():
        if not wanted or any(each.name in wanted for each in pictures):
            take(script, pictures)


if __name__ == "__main__":
    main()
