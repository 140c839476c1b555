"""The `tuimon` command: its grammar, and the one place where errors become a line and a status.

Each subcommand imports its half of tuimon when it runs; nothing else is imported here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tuimon import __version__
from tuimon.cli.endings import status_after
from tuimon.cli.grammar import (
    InOrder,
    once_options,
    picture_options,
    policy_options,
    price_option,
    via_option,
)
from tuimon.cli.reaching import ctl
from tuimon.cli.replaying import replay
from tuimon.errors import EXIT_OK

_Command = TypeVar("_Command", bound=Callable[..., Any])


def main(argv: list[str] | None = None) -> None:
    """Run one command and leave the process with its exit status."""
    sys.exit(status_of(argv))


def status_of(argv: list[str] | None = None) -> int:
    """Run one command; every error is one line on stderr and a documented status."""
    try:
        result = cli.main(argv, prog_name="tuimon", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else EXIT_OK
    except (Exception, KeyboardInterrupt) as error:
        return status_after(error)


# A bare group is not a mistake of one word: its help is the answer.
@click.group(cls=InOrder, no_args_is_help=False, invoke_without_command=True)
@click.version_option(__version__, prog_name="tuimon", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A live training monitor for PyTorch that lives in the terminal."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    elif ctx.invoked_subcommand in ("run", "attach") and not os.environ.get("TUIMON_DISABLE"):
        from tuimon.config import read_settings

        ctx.default_map = read_settings().by_command()


@cli.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("--attach", is_flag=True, help="Run in the background and open the viewer here.")
@click.option("--report", metavar="F.json", help="Write a report when the run ends.")
@click.option("--name", metavar="NAME", help="Name of the run; the script's name otherwise.")
@click.option("--headless", is_flag=True, help="No viewer here: the default without --attach.")
@policy_options
@click.option(
    "--total-steps",
    metavar="N",
    type=click.IntRange(1),
    help="How many updates it will make, for progress and the time that is left.",
)
@click.option(
    "--fail-on",
    metavar="SEVERITY",
    type=click.Choice(["warning", "critical"]),
    help="Exit with 6 where the script ends well but a finding is so severe: warning or critical.",
)
@click.option(
    "--apply",
    "ledger",
    metavar="RUN",
    help="Repeat the interventions of an earlier run at the same steps: the run, or its ledger.",
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
    snapshot_every: int | None,
    total_steps: int | None,
    fail_on: str | None,
    ledger: str | None,
    is_module: bool,
    script: str,
    args: tuple[str, ...],
) -> int:
    """Run a training SCRIPT as it is, and publish every step.

    The command becomes the training: same pid, signals, output and exit status; 125 when the
    script could not be started. Options of Python go before: python -u -m tuimon run SCRIPT.
    """
    if attach and headless:
        raise click.UsageError("--attach and --headless exclude each other")
    if attach and fail_on:
        raise click.UsageError("--fail-on is about the exit status, which --attach leaves behind")
    from tuimon.cli import starting
    from tuimon.train.control.policy import Policy

    policy = Policy(on_non_finite, max_hold, autopsy, snapshot_every=snapshot_every)
    if problem := policy.problem():
        raise click.UsageError(problem)
    argv = [*(["-m"] if is_module else []), script, *args]
    if attach:
        return starting.run_and_attach(
            argv, name=name, report=report, policy=policy, ledger=ledger, total_steps=total_steps
        )
    return starting.become_the_training(
        argv,
        name=name,
        report=report,
        policy=policy,
        fail_on=fail_on,
        ledger=ledger,
        total_steps=total_steps,
    )


def _view_options(command: _Command) -> _Command:
    for option in (
        price_option,
        picture_options,
        click.option("--readonly", is_flag=True, help="Without any key that changes the training."),
    ):
        command = option(command)
    return command


@cli.command()
@click.argument("run", required=False)
@once_options("Print one frame as text and leave.")
@click.option("--with", "other", metavar="RUN", help="Lay another run over the charts.")
@via_option
@_view_options
def attach(
    *,
    run: str | None,
    other: str | None,
    once: bool,
    svg: str | None,
    screen: str | None,
    via: str | None,
    readonly: bool,
    hz: float,
    glyphs: str,
    theme: str | None,
    price_per_hour: float | None,
) -> int:
    """Watch RUN live: an id, the beginning of one, a name or a pid.

    Without RUN the newest live run; on a terminal, where several live, a list to pick from.

    With --via the run is on another host, and CMD is what brings a command there:
    --via "ssh gpu07" executes ssh gpu07 tuimon relay RUN. A CMD that says itself where tuimon
    is ends in tuimon relay. The relay is started anew when it is lost.
    """
    from tuimon.cli import viewing

    if once:
        return viewing.once(
            run, via=via, other=other, glyphs=glyphs, theme=theme, screen=screen, svg=svg
        )
    viewing.need_once(svg=svg, screen=screen)
    return viewing.attach(
        run,
        via=via,
        readonly=readonly,
        hz=hz,
        glyphs=glyphs,
        price=price_per_hour,
        theme=theme,
        other=other,
    )


@cli.command()
@click.argument("run", required=False)
def relay(*, run: str | None) -> int:
    """Speak for RUN over stdin and stdout: attach --via."""
    from tuimon.cli import viewing

    return viewing.relay(run)


@cli.command(name="ls")
@click.option("--json", "as_json", is_flag=True, help="A list of objects for scripts.")
@price_option
def ls(*, as_json: bool, price_per_hour: float | None) -> None:
    """List the runs on this host, alive and gone."""
    from tuimon.cli import listing

    listing.print_runs(as_json=as_json, price=price_per_hour)


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
    """Start a training in real trouble, and the viewer on it.

    `q` ends both.
    """
    from tuimon.cli import demos

    if list_them:
        demos.print_scenarios()
        return EXIT_OK
    return demos.show(scenario, headless=headless, report=report)


@cli.command(name="report")
@click.argument("runs", metavar="[RUN|FILE]…", nargs=-1)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    required=True,
    help="Where to: x.html, x.md or x.json; - prints Markdown.",
)
def write_report(*, runs: tuple[str, ...], output: str) -> int:
    """Write a post-mortem of a run, to read or to send.

    Verdict, evidence, the operation with its line, charts, layers, interventions, environment and
    remedy, in one file. With two runs it says where they part: the first step and the first
    layer. RUN is an id, a name, a pid, or a recording; without one it is the newest.
    """
    from tuimon.cli import reporting

    return reporting.write(runs, output)


@cli.command(name="export")
@click.argument("run", metavar="[RUN|FILE]", required=False)
@click.option("--csv", metavar="DIR", help="A CSV file a table: steps, scalars, events, findings…")
@click.option("--parquet", metavar="DIR", help="The same as Parquet.")
@click.option("--tensorboard", metavar="DIR", help="Scalars and histograms for TensorBoard.")
@click.option("--layers", "with_layers", is_flag=True, help="Also each layer's norm at each step.")
def export_run(
    *,
    run: str | None,
    csv: str | None,
    parquet: str | None,
    tensorboard: str | None,
    with_layers: bool,
) -> int:
    """Write what a run recorded in the formats of other programs.

    RUN is an id, a name, a pid, or a recording; without it the newest. Missing values are empty;
    NaN and infinities stay what they are.
    """
    if not (csv or parquet or tensorboard):
        raise click.UsageError("say where to: --csv DIR, --parquet DIR or --tensorboard DIR")
    from tuimon.cli import exporting

    return exporting.export(
        run, csv=csv, parquet=parquet, tensorboard=tensorboard, with_layers=with_layers
    )


@cli.command()
@click.argument("slug", required=False)
def explain(*, slug: str | None) -> int:
    """Say what a cause is, why it happens, what helps.

    Without SLUG all causes are listed.
    """
    from tuimon.cli import explaining

    return explaining.explain(slug)


@cli.command(name="scan")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@click.option("--all", "with_all", is_flag=True, help="Every tensor, not unhealthy ones alone.")
@click.option(
    "--serve",
    metavar="DTYPE",
    type=click.Choice(["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]),
    help="Weights must also fit this dtype: float16, bfloat16, float8_e4m3fn or float8_e5m2.",
)
@click.option("--diff", is_flag=True, help="What changed from the first PATH to the second.")
@click.option("--first-bad", is_flag=True, help="The first bad one of ordered checkpoints.")
@click.option(
    "--trusted", is_flag=True, help="The files are yours: read them by torch below 2.10, too."
)
@click.option("--json", "as_json", is_flag=True, help="An object for scripts.")
def scan_weights(
    *,
    paths: tuple[str, ...],
    with_all: bool,
    serve: str | None,
    diff: bool,
    first_bad: bool,
    trusted: bool,
    as_json: bool,
) -> int:
    """Say whether the weights in PATH are healthy: files, or folders of them.

    Reads safetensors, what torch.save wrote, and folders of Hugging Face, also by their index of
    shards; nothing in them is executed. Exits with 6 where a tensor holds NaN or Inf, 2 where a
    file cannot be read.
    """
    if diff and first_bad:
        raise click.UsageError("--diff and --first-bad exclude each other")
    if diff and len(paths) != 2:
        raise click.UsageError("--diff takes two paths")
    from tuimon.cli import scanning

    if diff:
        return scanning.print_difference(
            *paths, as_json=as_json, with_all=with_all, trusted=trusted
        )
    look = scanning.find_first_bad if first_bad else scanning.scan_paths
    return look(paths, as_json=as_json, with_all=with_all, serve=serve, trusted=trusted)


@cli.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="An object for scripts.")
def doctor(*, run: str | None, as_json: bool) -> int:
    """Say why RUN cannot be attached to, and what helps.

    Looks at this host, this terminal and the runs, and changes nothing: room in shared memory,
    permissions, what the terminal can show, devices, torch, what earlier runs have left; with RUN
    also what of it is seen and what that costs. Exits with 6 where something is bad.
    """
    from tuimon.cli import doctoring

    return doctoring.examine(run, as_json=as_json)


cli.add_command(ctl)
cli.add_command(replay)
