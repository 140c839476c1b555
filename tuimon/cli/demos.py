"""`tuimon demo`: a script from the demo folder as a real run, with the viewer in front of it."""

from __future__ import annotations

import ast
import importlib.util
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from tuimon.errors import UsageError
from tuimon.model.text import plain


def print_scenarios() -> None:
    """Name every scenario with the first line of its docstring."""
    known = scenarios()
    width = max(map(len, known), default=0)
    for name, path in known.items():
        mark = "*" if name == default_scenario(known) else " "
        click.echo(f"{mark} {name.ljust(width)}  {first_line(path)}")
    click.echo("* is what `tuimon demo` alone shows")


def show(scenario: str | None, *, headless: bool, report: str | None) -> int:
    """Run a scenario, on a terminal with the viewer; `q` there ends both.

    Raises:
        UsageError: no such scenario, or no torch to train with.
    """
    from tuimon.cli import starting, viewing

    known = scenarios()
    name = scenario or default_scenario(known)
    if name not in known:
        raise UsageError(f"no demo {name[:80]!r}; there are: {', '.join(known)}")
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the demos train with PyTorch; install it: pip install 'tuimon[torch]'")
    argv, run_name = [str(known[name])], f"demo-{name}"
    if headless or not viewing.has_terminal():
        return starting.become_the_training(argv, name=run_name, report=report)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    process, info = starting.start_in_background(argv, name=run_name, report=report)
    try:
        return viewing.view(info)
    finally:
        if process.poll() is None:
            click.echo(f"tuimon: stopping the demo's training (run {info.id})", err=True)
            starting.stop(process, info)


def scenarios() -> dict[str, Path]:
    """Scripts by scenario name, in the order of their names."""
    return {
        path.stem.replace("_", "-"): path
        for path in sorted(_folder().glob("*.py"))
        if not path.name.startswith("_")
    }


def default_scenario(known: dict[str, Path]) -> str:
    """What `tuimon demo` shows: the package's choice, else the first one."""
    chosen = _literal(_folder() / "__init__.py", "DEFAULT")
    return chosen if chosen in known else next(iter(known), "")


def first_line(path: Path) -> str:
    """What a script says about itself; the script is read, not run."""
    try:
        docstring = ast.get_docstring(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError):
        docstring = None
    return plain((docstring or "").partition("\n")[0], 100)


def _folder() -> Path:
    """The installed package `tuimon.demos`, or the folder it is made from in a checkout."""
    spec = importlib.util.find_spec("tuimon.demos")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    import tuimon

    folder = Path(tuimon.__file__).resolve().parent.parent / "demo"
    if not folder.is_dir():
        raise UsageError("the demo scripts are not installed; reinstall tuimon")
    return folder


def _literal(path: Path, name: str) -> str | None:
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError):
        return None
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    return str(node.value.value)
    return None


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End by an exception, so that the training we started is ended as well."""
    sys.exit(128 + number)
