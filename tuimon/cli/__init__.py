"""The `tuimon` command: its grammar, and the one place where errors become a line and a status.

Each subcommand imports its half of tuimon when it runs; nothing else is imported here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuimon import __version__
from tuimon.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, TuimonError

if TYPE_CHECKING:
    from tuimon.cli.control import Target

_Command = TypeVar("_Command", bound=Callable[..., Any])

EXIT_UNEXPECTED = 1
DEFAULT_TIMEOUT_S = 60.0  # a step of a large model may take that long


def main(argv: list[str] | None = None) -> None:
    """Run one command and leave the process with its exit status."""
    sys.exit(status_of(argv))


def status_of(argv: list[str] | None = None) -> int:
    """Run one command; every error is one line on stderr and a documented status."""
    try:
        result = cli.main(argv, prog_name="tuimon", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else EXIT_OK
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        complain(f"{message}; see `{_command_path(error)} --help`")
        return EXIT_USAGE
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not flush into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except TuimonError as error:
        complain(str(error))
        return error.exit_code
    except Exception as error:
        complain(f"unexpected {type(error).__name__}: {error}; please report this")
        return EXIT_UNEXPECTED


def complain(text: str) -> None:
    """One `tuimon:` line on stderr, safe for a terminal."""
    from tuimon.model.text import plain

    click.echo(f"tuimon: {plain(text)}", err=True)


def _command_path(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if isinstance(context, click.Context) else "tuimon"


class _InOrder(click.Group):
    """Lists commands in the order in which they were written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


# A bare group is not a mistake of one word: its help is the answer.
@click.group(cls=_InOrder, no_args_is_help=False, invoke_without_command=True)
@click.version_option(__version__, prog_name="tuimon", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A live training monitor for PyTorch that lives in the terminal."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("--attach", is_flag=True, help="Run in the background and open the viewer here.")
@click.option("--report", metavar="F.json", help="Write a report when the run ends.")
@click.option("--name", metavar="NAME", help="Name of the run; the script's name otherwise.")
@click.option("--headless", is_flag=True, help="No viewer here: the default without --attach.")
@click.option(
    "--on-non-finite",
    metavar="WHAT",
    default="continue",
    help="About an update with gradients that are not finite: continue, hold, skip or raise.",
)
@click.option(
    "--max-hold", metavar="SECONDS", type=float, default=300.0, help="How long a hold may last."
)
@click.option(
    "--autopsy",
    metavar="HOW",
    help="off, light (runs no code of the script), or full, which is the default.",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as after python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    attach: bool,
    report: str | None,
    name: str | None,
    headless: bool,
    on_non_finite: str,
    max_hold: float,
    autopsy: str | None,
    is_module: bool,
    script: str,
    args: tuple[str, ...],
) -> int:
    """Run an unmodified training SCRIPT with its ARGS and publish every step.

    The command becomes the training: same pid, signals, output and exit status; 125 when the
    script could not be started. Options of Python go before: python -u -m tuimon run SCRIPT.
    """
    if attach and headless:
        raise click.UsageError("--attach and --headless exclude each other")
    from tuimon.cli import starting
    from tuimon.train.policy import Policy

    policy = Policy(on_non_finite, max_hold, autopsy)
    if problem := policy.problem():
        raise click.UsageError(problem)
    argv = [*(["-m"] if is_module else []), script, *args]
    if attach:
        return starting.run_and_attach(argv, name=name, report=report, policy=policy)
    return starting.become_the_training(argv, name=name, report=report, policy=policy)


def _view_options(command: _Command) -> _Command:
    for option in (
        click.option(
            "--glyphs",
            type=click.Choice(["auto", "braille", "block", "ascii"]),
            default="auto",
            help="Characters to draw with.",
        ),
        click.option(
            "--hz", type=click.FloatRange(0.5, 60), default=10.0, help="Pictures a second at most."
        ),
        click.option("--readonly", is_flag=True, help="Without any key that changes the training."),
    ):
        command = option(command)
    return command


def _via_option(command: _Command) -> _Command:
    words = "Reach the run's host by CMD, such as 'ssh gpu07'."
    return click.option("--via", metavar="CMD", help=words)(command)


@cli.command()
@click.argument("run", required=False)
@click.option("--once", is_flag=True, help="Print one frame as text and leave.")
@_via_option
@_view_options
def attach(
    *, run: str | None, once: bool, via: str | None, readonly: bool, hz: float, glyphs: str
) -> int:
    """Watch RUN live: an id, the beginning of one, a name or a pid.

    Without RUN the newest live run; on a terminal, where several live, a list to pick from.

    With --via the run is on another host, and CMD is what brings a command there:
    --via "ssh gpu07" executes ssh gpu07 tuimon relay RUN. A CMD that says itself where tuimon
    is ends in tuimon relay. The relay is started anew when it is lost.
    """
    from tuimon.cli import viewing

    if once:
        return viewing.print_once(run, via=via, glyphs=glyphs)
    return viewing.attach(run, via=via, readonly=readonly, hz=hz, glyphs=glyphs)


@cli.command()
@click.argument("run", required=False)
def relay(*, run: str | None) -> int:
    """Speak what RUN offers over stdin and stdout, for attach --via from another host."""
    from tuimon.cli import viewing

    return viewing.relay(run)


@cli.command(name="ls")
@click.option("--json", "as_json", is_flag=True, help="A list of objects for scripts.")
def ls(*, as_json: bool) -> None:
    """List the runs on this host, alive and gone."""
    from tuimon.cli import listing

    listing.print_runs(as_json=as_json)


class _WithScenarios(click.Command):
    """Help that ends in the table of the demos."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tuimon.cli import demos

        with formatter.section("Scenarios"):
            formatter.write_dl(demos.scenario_lines())


@cli.command(cls=_WithScenarios)
@click.argument("scenario", required=False)
@click.option("--list", "list_them", is_flag=True, help="What each scenario shows, and what to do.")
@click.option("--headless", is_flag=True, help="Without the viewer, also on a terminal.")
@click.option("--report", metavar="F.json", help="Write a report when the demo ends.")
def demo(*, scenario: str | None, list_them: bool, headless: bool, report: str | None) -> int:
    """Start a real training in real trouble, and the viewer on it; `q` ends both."""
    from tuimon.cli import demos

    if list_them:
        demos.print_scenarios()
        return EXIT_OK
    return demos.show(scenario, headless=headless, report=report)


@cli.group(cls=_InOrder, no_args_is_help=False, subcommand_metavar="COMMAND [ARGS]…")
@_via_option
@click.argument("run")
@click.pass_context
def ctl(ctx: click.Context, run: str, via: str | None) -> None:
    """Send one command to the training RUN and wait until it is applied or refused."""
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


@ctl.command()
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
    """Who clips the gradients: tuimon (on), nobody (off), the script (user)."""
    from tuimon.cli import control
    from tuimon.model.commands import SetClip

    return control.send(run, SetClip(mode, max_norm), timeout_s=timeout_s, as_json=as_json)


@ctl.command(name="max-norm")
@click.argument("value", metavar="X", type=float)
@_answer_options
@click.pass_obj
def max_norm(run: Target, *, value: float, timeout_s: float, as_json: bool) -> int:
    """Change the bound of tuimon's clipping."""
    from tuimon.cli import control
    from tuimon.model.commands import SetMaxNorm

    return control.send(run, SetMaxNorm(value), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.argument("layers", metavar="LAYER…", nargs=-1, required=True)
@click.option("-o", "--output", "folder", metavar="DIR", required=True, help="Folder to write to.")
@_answer_options
@click.pass_obj
def dump(
    run: Target, *, layers: tuple[str, ...], folder: str, timeout_s: float, as_json: bool
) -> int:
    """Write parameter and gradient of LAYERs as safetensors plus JSON statistics."""
    from tuimon.cli import control
    from tuimon.model.commands import Dump

    # A relative folder is one of this host; elsewhere the command's own check asks for the whole.
    place = os.path.abspath(folder) if run.via is None else folder
    command = Dump(list(layers), place)
    return control.send(run, command, timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.argument("mode", type=click.Choice(["on", "off"]))
@_answer_options
@click.pass_obj
def hold(run: Target, *, mode: str, timeout_s: float, as_json: bool) -> int:
    """Wait before the first update whose gradients are not finite, or no longer (off)."""
    from tuimon.cli import control
    from tuimon.model.commands import ArmHold, DisarmHold

    command = ArmHold() if mode == "on" else DisarmHold()
    return control.send(run, command, timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@click.argument("count", metavar="[N]", type=int, default=1)
@_answer_options
@click.pass_obj
def skip(run: Target, *, count: int, timeout_s: float, as_json: bool) -> int:
    """Leave out the next N updates; ends a hold."""
    from tuimon.cli import control
    from tuimon.model.commands import SkipUpdate

    return control.send(run, SkipUpdate(count), timeout_s=timeout_s, as_json=as_json)


@ctl.command()
@_answer_options
@click.pass_obj
def autopsy(run: Target, *, timeout_s: float, as_json: bool) -> int:
    """Examine the next update, bad or not."""
    from tuimon.cli import control
    from tuimon.model.commands import RunAutopsy

    return control.send(run, RunAutopsy(), timeout_s=timeout_s, as_json=as_json)


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
