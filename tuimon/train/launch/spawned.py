"""Executed in a spawned child of a watched process while it is prepared, before the user's code.

Not imported: `tuimon.train.launch.children` has it run by its path, with `parent`, `run` and
`ledger` among its globals: name and folder of the run that the child belongs to, and what is
repeated there. Nothing it does may fail the child.
"""

from __future__ import annotations

import sys


def _bootstrap(parent: str, run: str, ledger: str) -> None:
    """Make `tuimon` importable, also from a checkout, and leave `sys.path` as it was."""
    package_root = __file__.rsplit("/", 4)[0]
    sys.path.insert(0, package_root)
    try:
        import tuimon.train.launch.children as children
    finally:
        sys.path.remove(package_root)
    children.begin(parent, run, ledger)


if "parent" in globals():
    try:
        _bootstrap(globals()["parent"], globals()["run"], globals()["ledger"])
    except Exception as error:
        sys.stderr.write(f"tuimon: a child is not watched ({type(error).__name__})\n")
