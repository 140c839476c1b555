"""`python -m tuimon` is the `tuimon` command."""

from __future__ import annotations

import sys


def _main() -> None:
    if not sys.flags.safe_path:
        # The folder of the caller: nothing in it may stand in for a module that tuimon needs.
        del sys.path[0]
    from tuimon.cli import main

    main()


if __name__ == "__main__":
    _main()
