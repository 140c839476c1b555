"""`tuimon ctl RUN COMMAND …`: the grammar of what can be asked of a training.

Each subcommand imports its half of tuimon when it runs; nothing else is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuimon.cli.grammar import InOrder, WithGrammar, via_option

if TYPE_CHECKING:
    from tuimon.cli.control import Target
    from tuimon.model.commands import AnyCommand


class Reaching(WithGrammar, InOrder):
    """Its help ends in the grammar of breakpoints."""


# A number below 0 is an argument that makes no sense, and not an option nobody knows.
_NUMBERS = {"ignore_unknown_options": True}

_Command = TypeVar("_Command", bound=Callable[..., Any])

DEFAULT_TIMEOUT_S = 60.0  # a step of a large model may take that long


@click.group(cls=Reaching, no_args_is_help=False, subcommand_metavar="COMMAND [ARGS]…")
@via_option
@click.argument("run")
@click.pass_context
def ctl(ctx: click.Context, run: str, via: str | None) -> None:
    """Send one command to RUN and wait for what becomes of it."""
    from tuimon.cli.control import Target

    ctx.obj = Target(run, via)


def _answer_options(command: _Command) -> _Command:
    for option in (
        click.option(
            "--timeout",
            "timeout_s",
            metavar="SECONDS",
            type=click.FloatRange(0),
            default=DEFAULT_TIMEOUT_S,
            show_default=True,
            help="How long to wait for the command to be applied.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the outcome as one object."),
    ):
        command = option(command)
    return command


@ctl.command()
@_answer_options
@click.pass_obj
def pause(run: Target, *, timeout_s: float, as_json: bool) -> int:
    """Wait at the next gate, before the update."""
    from tuimon.cli import control
    from tuimon.model.commands import Pause

    return control.send(run, Pause(), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@_answer_options
@click.pass_obj
def resume(run: Target, *, timeout_s: float, as_json: bool) -> int:
    """Go on after a pause."""
    from tuimon.cli import control
    from tuimon.model.commands import Resume

    return control.send(run, Resume(), timeout_s=timeout_s, as_json=as_json)


@ctl.command(context_settings=_NUMBERS)
@click.argument("count", metavar="[N]", type=int, default=1)
@_answer_options
@click.pass_obj
def step(run: Target, *, count: int, timeout_s: float, as_json: bool) -> int:
    """While paused: make N updates, then wait again."""
    from tuimon.cli import control
    from tuimon.model.commands import StepOnce

    return control.send(run, StepOnce(count), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.argument("mode", type=click.Choice(["on", "off", "user"]))
@click.option("--max-norm", type=float, help="Bound of the gradient norm, with `on`.")
@_answer_options
@click.pass_obj
def clip(run: Target, *, mode: str, max_norm: float | None, timeout_s: float, as_json: bool) -> int:
    """Who clips: tuimon (on), nobody (off), the script (user)."""
    from tuimon.cli import control
    from tuimon.model.commands import SetClip

    return control.send(run, SetClip(mode, max_norm), timeout_s=timeout_s, as_json=as_json)


@ctl.command(name="max-norm", context_settings=_NUMBERS)
@click.argument("value", metavar="X", type=float)
@_answer_options
@click.pass_obj
def max_norm(run: Target, *, value: float, timeout_s: float, as_json: bool) -> int:
    """Change the bound of tuimon's clipping."""
    from tuimon.cli import control
    from tuimon.model.commands import SetMaxNorm

    return control.send(run, SetMaxNorm(value), timeout_s=timeout_s, as_json=as_json)


@ctl.command(context_settings=_NUMBERS)
@click.argument("mode", type=click.Choice(["scale", "set", "release"]))
@click.argument("value", metavar="[X]", type=float, required=False)
@click.option("--group", metavar="N", type=int, help="With `set`: this param_group only.")
@click.option("--optimizer", metavar="N", type=int, default=0, help="With `set`: which optimizer.")
@_answer_options
@click.pass_obj
def lr(
    run: Target,
    *,
    mode: str,
    value: float | None,
    group: int | None,
    optimizer: int,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Scale the learning rate by X, set it to X, or release it to the script.

    A scheduler goes on with its own values and does not notice.
    """
    from tuimon.cli import control
    from tuimon.model.commands import ReleaseLr, ScaleLr, SetLr

    if (value is None) is not (mode == "release"):
        raise click.UsageError(f"lr {mode} takes {'no' if mode == 'release' else 'a'} number")
    if mode != "set" and (group is not None or optimizer):
        raise click.UsageError("--group and --optimizer go with `lr set` only")
    if value is None:
        command: ScaleLr | SetLr | ReleaseLr = ReleaseLr()
    else:
        command = ScaleLr(value) if mode == "scale" else SetLr(value, group, optimizer)
    return control.send(run, command, timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.argument("layers", metavar="LAYER…", nargs=-1, required=True)
@click.option("-o", "--output", "folder", metavar="DIR", required=True, help="Folder to write to.")
@_answer_options
@click.pass_obj
def dump(
    run: Target, *, layers: tuple[str, ...], folder: str, timeout_s: float, as_json: bool
) -> int:
    """Write parameter and gradient of LAYERs to a folder.

    Safetensors, with statistics as JSON beside them.
    """
    from tuimon.cli import control
    from tuimon.model.commands import Dump

    # A relative folder is one of this host; elsewhere the command's own check asks for the whole.
    place = os.path.abspath(folder) if run.via is None else folder
    command = Dump(list(layers), place)
    return control.send(run, command, timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.option("-o", "--output", "folder", metavar="DIR", required=True, help="Folder to write to.")
@_answer_options
@click.pass_obj
def checkpoint(run: Target, *, folder: str, timeout_s: float, as_json: bool) -> int:
    """Save models, optimizers, loss scale and random streams.

    The file loads with torch.load(…, weights_only=True).
    """
    from tuimon.cli import control
    from tuimon.model.commands import SaveCheckpoint

    place = os.path.abspath(folder) if run.via is None else folder
    return control.send(run, SaveCheckpoint(place), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.argument("mode", type=click.Choice(["on", "off"]))
@_answer_options
@click.pass_obj
def hold(run: Target, *, mode: str, timeout_s: float, as_json: bool) -> int:
    """Wait before the first update that is not finite: on, off."""
    from tuimon.cli import control
    from tuimon.model.commands import ArmHold, DisarmHold

    command = ArmHold() if mode == "on" else DisarmHold()
    return control.send(run, command, timeout_s=timeout_s, as_json=as_json)


@ctl.command(context_settings=_NUMBERS)
@click.argument("count", metavar="[N]", type=int, default=1)
@_answer_options
@click.pass_obj
def skip(run: Target, *, count: int, timeout_s: float, as_json: bool) -> int:
    """Leave out the next N updates; ends a hold."""
    from tuimon.cli import control
    from tuimon.model.commands import SkipUpdate

    return control.send(run, SkipUpdate(count), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.option("--lr", "factor", metavar="F", type=float, help="And scale the learning rate by F.")
@_answer_options
@click.pass_obj
def rollback(run: Target, *, factor: float | None, timeout_s: float, as_json: bool) -> int:
    """Return to the last healthy snapshot; ends a hold."""
    from tuimon.cli import control
    from tuimon.model.commands import RollBack

    return control.send(run, RollBack(factor), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@_answer_options
@click.pass_obj
def undo(run: Target, *, timeout_s: float, as_json: bool) -> int:
    """Take back the newest change of clipping or learning rate."""
    from tuimon.cli import control
    from tuimon.model.commands import Undo

    return control.send(run, Undo(), timeout_s=timeout_s, as_json=as_json)


@ctl.command(name="breakpoint", cls=WithGrammar)
@click.argument("words", metavar="[CONDITION | list | clear N]", nargs=-1)
@click.option("--clear", metavar="N", help="Clear breakpoint N, or all of them: all.")
@_answer_options
@click.pass_obj
def set_breakpoint(
    run: Target, *, words: tuple[str, ...], clear: str | None, timeout_s: float, as_json: bool
) -> int:
    """Hold the training when CONDITION becomes true; list, clear.

    Without CONDITION, or with `list`, the breakpoints that are set are listed; `clear N` takes one
    away, `clear all` all of them. The training waits before the update, as when paused, and goes
    on by itself after --max-hold seconds.
    """
    from tuimon.cli import control, looking
    from tuimon.model.commands import SetBreakpoint

    if words and clear is not None:
        raise click.UsageError("a CONDITION and --clear exclude each other")
    if clear is not None:
        return control.send(run, _cleared(clear, "--clear"), timeout_s=timeout_s, as_json=as_json)
    condition = " ".join(words or ("list",))
    first, *rest = condition.split() or [""]
    if first == "list":
        if rest:
            raise click.UsageError("list takes nothing more")
        return looking.print_breakpoints(run, as_json=as_json)
    if first == "clear":
        command: AnyCommand = _cleared(" ".join(rest), "clear")
    else:
        command = SetBreakpoint(condition)
    return control.send(run, command, timeout_s=timeout_s, as_json=as_json)


def _cleared(typed: str, asked: str) -> AnyCommand:
    from tuimon.model.commands import ClearBreakpoint

    if not (typed == "all" or (typed.isdecimal() and len(typed) < 10)):
        found = f", not {typed[:40]!r}" if typed else ""
        raise click.UsageError(f"{asked} takes the number of a breakpoint, or all{found}")
    return ClearBreakpoint(None if typed == "all" else int(typed))


@ctl.command()
@click.argument("layer")
@_answer_options
@click.pass_obj
def inspect(run: Target, *, layer: str, timeout_s: float, as_json: bool) -> int:
    """Look at every element of LAYER: parameter, gradient, output."""
    from tuimon.cli import looking

    return looking.inspect(run, layer, timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.option("--rank", default=0, metavar="R", help="Whose, where there are several ranks.")
@_answer_options
@click.pass_obj
def autopsy(run: Target, *, rank: int, timeout_s: float, as_json: bool) -> int:
    """Examine the next update, bad or not."""
    from tuimon.cli import control
    from tuimon.model.commands import RunAutopsy

    return control.send(run, RunAutopsy(rank), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@_answer_options
@click.pass_obj
def stop(run: Target, *, timeout_s: float, as_json: bool) -> int:
    """End the training at the next boundary, as Ctrl-C would."""
    from tuimon.cli import control
    from tuimon.model.commands import Stop

    return control.send(run, Stop(), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.option("--json", "as_json", is_flag=True, help="A list of objects for scripts.")
@click.pass_obj
def log(run: Target, *, as_json: bool) -> None:
    """Print every command the run was sent, with what became of it."""
    from tuimon.cli import control

    control.print_log(run, as_json=as_json)
