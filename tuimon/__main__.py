"""`python -m tuimon` is the `tuimon` command."""

from tuimon.cli import main

if __name__ == "__main__":
    main()
