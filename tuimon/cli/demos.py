"""`tuimon demo`: a script from the demo folder as a real run, with the viewer in front of it."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn, Protocol

import click

from tuimon.errors import UsageError
from tuimon.model.text import plain


class Scenario(Protocol):
    """What the demo package says about one of its scripts."""

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def hint(self) -> str: ...
    @property
    def path(self) -> Path: ...


def print_scenarios() -> None:
    """Name every scenario, with what will be seen and what to do about it."""
    known, default = scenarios()
    for name, scenario in known.items():
        mark = " (what `tuimon demo` alone shows)" if name == default else ""
        click.echo(f"{name}{mark}\n    {plain(scenario.about)}\n    {plain(scenario.hint)}")


def scenario_lines() -> list[tuple[str, str]]:
    """(name, what happens) of every scenario, the one that is shown unasked first."""
    known, default = scenarios()
    ordered = sorted(known.items(), key=lambda each: each[0] != default)
    return [(name, plain(scenario.about)) for name, scenario in ordered]


def show(wanted: str | None, *, headless: bool, report: str | None) -> int:
    """Run a scenario, on a terminal with the viewer; `q` there ends both.

    Raises:
        UsageError: no such scenario, or no torch to train with.
    """
    from tuimon.cli import starting, viewing
    from tuimon.train.control.policy import Policy

    known, default = scenarios()
    name = wanted or default
    if name not in known:
        raise UsageError(f"no demo {name[:80]!r}; there are: {', '.join(known)}")
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the demos train with PyTorch; install it: pip install 'tuimon[torch]'")
    argv, run_name = [str(known[name].path)], f"demo-{name}"
    if headless or not viewing.has_terminal():
        return starting.become_the_training(argv, name=run_name, report=report)
    click.echo(f"tuimon: {plain(known[name].about)} {plain(known[name].hint)}", err=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    # Somebody is there to decide: the first bad update is waited before.
    process, info = starting.start_in_background(
        argv, name=run_name, report=report, policy=Policy("hold")
    )
    try:
        return viewing.view(info)
    finally:
        if process.poll() is None:
            click.echo(f"tuimon: stopping the demo's training, run {info.id}", err=True)
            starting.stop(process, info)


def scenarios() -> tuple[dict[str, Scenario], str]:
    """The table of the demo package, and the scenario that is shown unasked."""
    try:
        package = importlib.import_module("tuimon.demos")
    except ModuleNotFoundError:
        package = _from_checkout()
    return package.SCENARIOS, package.DEFAULT


def _from_checkout() -> ModuleType:
    """The package from the folder it is made of, where it is not installed as `tuimon.demos`."""
    import tuimon

    file = Path(tuimon.__file__).resolve().parent.parent / "demo" / "__init__.py"
    spec = importlib.util.spec_from_file_location("tuimon.demos", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise UsageError("the demo scripts are not installed; reinstall tuimon")
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)
    return package


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End by an exception, so that the training we started is ended as well."""
    sys.exit(128 + number)
