"""What `tuimon run` becomes: this process starts the session, then runs the script as its own.

Run as a file, `python [options] …/launcher.py [--name=N] [--report=F] [-m] script args…`; nothing
of the user's folder is on `sys.path` until the script starts, so none of it can stand in for a
module that tuimon needs. Owns `sys.excepthook` only while an uncaught exception is shown.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Parse our few options, start the session, run the target, leave as it leaves."""
    from tuimon.errors import CannotStart, TuimonError, UsageError
    from tuimon.feed.ledger import read_ledger
    from tuimon.train.boundary import say
    from tuimon.train.control.policy import from_words
    from tuimon.train.launch import script
    from tuimon.train.launch.watching import Watching

    options = _interpreter_options(sys.orig_argv, sys.argv[0])
    try:
        target, ours = _parse(sys.argv[1:])
        program = script.Script(target, options)
        repeat = read_ledger(ours["apply"]) if "apply" in ours else None
    except TuimonError as error:
        say(str(error))
        wrong = isinstance(error, UsageError)
        raise SystemExit(error.exit_code if wrong else CannotStart.exit_code) from None
    watching = Watching(
        target,
        name=ours.get("name"),
        report=ours.get("report"),
        policy=from_words(ours),
        fail_on=ours.get("fail-on"),
        repeat=repeat,
        total_steps=int(ours["total-steps"]) if "total-steps" in ours else None,
    )
    if "in-background" in ours:
        watching.start_in_background()
    else:
        watching.start()
    try:
        program.run()
    except CannotStart as error:
        say(str(error))
        watching.could_not_start(str(error))
        raise SystemExit(CannotStart.exit_code) from None
    except BaseException as error:
        watching.script_raised(error)
        if status := watching.status_by_findings():
            raise SystemExit(status) from None
        raise
    if status := watching.status_by_findings():
        raise SystemExit(status)


def command_line(
    target_argv: list[str],
    *,
    name: str | None = None,
    report: str | None = None,
    in_background: bool = False,
    policy: Policy | None = None,
    fail_on: str | None = None,
    ledger: str | None = None,
    total_steps: int | None = None,
) -> list[str]:
    """The command that `tuimon run` turns into, with this interpreter and its options.

    Args:
        target_argv: `script args…` or `-m module args…`.
        name: name of the run; None takes the script's.
        report: absolute path of the report; None for none.
        policy: what may be done about bad steps; None for the usual.
        fail_on: severity of a finding that makes the exit status 6; None for none.
        ledger: absolute path of a ledger whose interventions are repeated; None for none.
        total_steps: how many updates it will make; None where nobody knows.
        in_background: nobody sees its output, which goes to `output.log` in the run folder.
    """
    ours = [f"--name={name}"] if name is not None else []
    ours += [f"--report={report}"] if report is not None else []
    ours += ["--in-background=yes"] if in_background else []
    ours += [f"--fail-on={fail_on}"] if fail_on is not None else []
    ours += [f"--apply={ledger}"] if ledger is not None else []
    ours += [f"--total-steps={total_steps}"] if total_steps is not None else []
    ours += [] if policy is None else [f"--{word}" for word in policy.words()]
    return [sys.executable, *own_interpreter_options(), __file__, *ours, *target_argv]


def own_interpreter_options() -> list[str]:
    """The options this interpreter was started with, before the script or `-m`."""
    return _interpreter_options(sys.orig_argv, sys.argv[0])


def _interpreter_options(orig_argv: list[str], script: str) -> list[str]:
    """`-u`, `-X dev`, `-Werror`, … of a command line that goes on with `script`, -m or -c."""
    options: list[str] = []
    rest = iter(orig_argv[1:])
    for word in rest:
        if not word.startswith("-") or word in ("-", script):
            break
        if word.startswith("--"):
            options.append(word)
            if word == "--check-hash-based-pycs":
                options.extend(next(rest, ""))
            continue
        letters = word[1:]
        takes_value = next((i for i, letter in enumerate(letters) if letter in "WXmc"), None)
        if takes_value is None:
            options.append(word)
            continue
        if letters[takes_value] in "mc":
            if takes_value:
                options.append(word[: takes_value + 1])
            break
        options.append(word)
        if takes_value == len(letters) - 1:
            options.append(next(rest, ""))
    return options


def _parse(words: list[str]) -> tuple[Target, dict[str, str]]:
    from tuimon.errors import CannotStart
    from tuimon.train.launch.script import Target

    found: dict[str, str] = {}
    while words and words[0].startswith("--") and "=" in words[0]:
        key, _, value = words.pop(0)[2:].partition("=")
        found[key] = value
    is_module = bool(words) and words[0] == "-m"
    if is_module:
        words.pop(0)
    if not words:
        raise CannotStart("no script named; use: tuimon run script.py args…")
    return Target(words[0], tuple(words[1:]), is_module), found


def _bootstrap() -> None:
    """Make `tuimon` importable, also from a checkout, and leave `sys.path` as a bare run has it."""
    if not sys.flags.safe_path:
        del sys.path[0]  # this file's folder
    package_root = __file__.rsplit("/", 4)[0]
    sys.path.insert(0, package_root)
    try:
        import tuimon.train.launch.launcher as launcher
    finally:
        sys.path.remove(package_root)
    launcher.main()


TYPE_CHECKING = False
if TYPE_CHECKING:
    from tuimon.train.control.policy import Policy
    from tuimon.train.launch.script import Target

if __name__ == "__main__":
    _bootstrap()
