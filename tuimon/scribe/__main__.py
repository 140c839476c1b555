"""`python -P -m tuimon.scribe RUN_FOLDER`: detaches at once, then serves the run to its end."""

from __future__ import annotations

import os
import sys

from tuimon.errors import EXIT_NO_RUN, EXIT_OK, EXIT_USAGE


def main(arguments: list[str]) -> int:
    """Check the argument, hand over to a detached child and return; the child does not return."""
    if len(arguments) != 1:
        print("tuimon: usage: python -m tuimon.scribe RUN_FOLDER", file=sys.stderr)
        return EXIT_USAGE
    folder = arguments[0]
    if not os.path.isfile(os.path.join(folder, "run.json")):
        print(f"tuimon: no run in {folder}", file=sys.stderr)
        return EXIT_NO_RUN
    from tuimon.scribe.detach import detach

    user_umask = detach(os.path.join(folder, "scribe.log"))
    if user_umask is None:
        return EXIT_OK
    code = 1
    try:
        from tuimon.scribe.service import serve

        code = serve(folder, user_umask)
    finally:
        # The child must not run exit handlers that belong to the process it was forked from.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
