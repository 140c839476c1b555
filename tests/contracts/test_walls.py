"""Who may import whom: on the graph of all imports, and by what a fresh interpreter loads."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.contracts.fresh import loaded_by, top_levels

ROOT = Path(__file__).resolve().parents[2]
SCREEN = {"textual", "rich"}
COMMAND_LINE = {"click"}

# Every module of the package is imported; none of these may come with it.
NEVER = {
    "model": {"torch", "psutil", "pynvml", *SCREEN, *COMMAND_LINE},
    "feed": {"torch", "psutil", "pynvml", *SCREEN, *COMMAND_LINE},
    "hw": {"torch", "pynvml", *SCREEN, *COMMAND_LINE},
    "diagnose": {"torch", "psutil", "pynvml", *SCREEN, *COMMAND_LINE},
    "scribe": {"torch", *SCREEN, *COMMAND_LINE},
    "view": {"torch", *SCREEN, *COMMAND_LINE},
    "inspect": {"torch", "psutil", "pynvml", *SCREEN, *COMMAND_LINE},
    "export": {"torch", "pyarrow", "tensorboard", *SCREEN, *COMMAND_LINE},
    "tui": {"torch"},
    "cli": {"torch"},
}
# What each part may import of ours; the contracts in pyproject.toml forbid the rest.
ALLOWED = {
    "errors": set(),
    "config": {"model", "errors"},
    "model": {"errors"},
    "feed": {"model", "errors"},
    "hw": {"model", "errors"},
    "inspect": {"feed", "model", "errors"},
    "export": {"config", "diagnose", "feed", "hw", "model", "view", "errors"},
    "diagnose": {"model", "errors"},
    "train": {"config", "feed", "model", "diagnose", "errors"},
    "scribe": {"config", "feed", "hw", "model", "diagnose", "errors"},
    "view": {"config", "feed", "hw", "model", "diagnose", "errors"},
    "tui": {"config", "view", "model", "errors"},
    "cli": {
        "config",
        "diagnose",
        "errors",
        "export",
        "feed",
        "hw",
        "inspect",
        "model",
        "scribe",
        "train",
        "tui",
        "view",
    },
}


def test_the_graph_of_imports_keeps_the_walls() -> None:
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_contracts_forbid_all_that_is_not_allowed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    parts = {path.parent.name for path in (ROOT / "tuimon").glob("*/__init__.py")}
    parts |= {path.stem for path in (ROOT / "tuimon").glob("[!_]*.py")}
    assert parts == set(ALLOWED)
    for part, allowed in ALLOWED.items():
        forbidden = {
            name.removeprefix("tuimon.")
            for contract in settings["contracts"]
            if f"tuimon.{part}" in contract["source_modules"]
            for name in contract["forbidden_modules"]
            if name.startswith("tuimon.")
        }
        assert forbidden == parts - allowed - {part}, part


@pytest.mark.parametrize("package", NEVER)
def test_a_package_loads_only_what_it_may(package: str) -> None:
    loaded = loaded_by(f"import_all('tuimon.{package}')\n")
    assert not top_levels(loaded) & NEVER[package]
    ours = {name.split(".")[1] for name in loaded if name.startswith("tuimon.")}
    # What tui needs of feed and hw comes with view.
    allowed = ALLOWED[package] | (ALLOWED["view"] if package == "tui" else set())
    assert ours <= allowed | {package}


def test_the_package_itself_loads_nothing() -> None:
    loaded = loaded_by("import tuimon\ntuimon.__version__\ndir(tuimon)\n")
    assert top_levels(loaded) - sys.stdlib_module_names - {"__main__"} <= {"tuimon"} | _STARTUP
    assert {name for name in loaded if name.startswith("tuimon.")} == set()


def test_the_command_line_knows_click_and_errors_only() -> None:
    loaded = loaded_by("import tuimon.cli\n")
    foreign = top_levels(loaded) - sys.stdlib_module_names - {"__main__", "tuimon"} - _STARTUP
    assert foreign <= {"click", "colorama"}
    assert {name for name in loaded if name.startswith("tuimon.")} <= {
        "tuimon.cli",
        "tuimon.cli.endings",
        "tuimon.cli.grammar",
        "tuimon.cli.reaching",
        "tuimon.cli.replaying",
        "tuimon.errors",
    }


def test_a_viewer_needs_no_torch() -> None:
    loaded = loaded_by(
        "import_all('tuimon.cli', 'tuimon.tui', 'tuimon.view', 'tuimon.scribe')\n"
        "from tuimon.cli import status_of\n"
        "assert status_of(['--help']) == 0\n"
        "assert status_of(['demo', '--list']) == 0\n"
        "assert status_of(['attach', 'no-such-run', '--once']) == 3\n",
        blocked={"torch"},
    )
    assert "torch" not in loaded


def test_a_command_without_a_picture_is_quick(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("TUIMON_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    loaded = loaded_by(
        "from tuimon.cli import status_of\n"
        "assert status_of(['--help']) == 0\n"
        "assert status_of(['ctl', '--help']) == 0\n"
        "assert status_of(['explain']) == 0\n"
        "assert status_of(['ls']) == 0\n"
        "assert status_of(['ctl', 'no-such-run', 'pause']) == 3\n"
        "assert status_of(['attach', 'no-such-run']) == 3\n"
        "assert status_of(['replay', 'no-such-run']) == 3\n"
    )
    assert not top_levels(loaded) & {"torch", "numpy", "asyncio", *SCREEN}


def test_a_viewer_begins_with_what_its_first_picture_needs() -> None:
    loaded = loaded_by("import tuimon.cli.viewing, tuimon.tui.start, tuimon.tui.app\n")
    assert not top_levels(loaded) & {"http", "email", "xml", "pygments"}
    later = {"tui.dialogs", "tui.once", "tui.svg", "view.remote", "view.replay", "feed.coarsening"}
    assert not loaded & {f"tuimon.{name}" for name in later}


TRAINS = """
import torch
import tuimon
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = tuimon.watch(model, optimizer)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
monitor.close()
import_all("tuimon.train")
"""


def test_a_training_needs_no_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIMON_SCRIBE", "0")
    guests = {"click", "psutil", "pynvml", *SCREEN}
    loaded = loaded_by(TRAINS, blocked=guests)
    assert "torch" in loaded and not top_levels(loaded) & guests
    ours = {name.split(".")[1] for name in loaded if name.startswith("tuimon.")}
    assert not ours & {"cli", "hw", "scribe", "tui", "view"}


def _loaded_at_startup() -> set[str]:
    """What `.pth` files of this environment load before any code of ours."""
    return top_levels(loaded_by(""))


_STARTUP = _loaded_at_startup()
