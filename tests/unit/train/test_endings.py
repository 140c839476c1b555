"""How a script ended, as the report has it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tuimon.train.boundary import Stop
from tuimon.train.launch.watching import how_it_ended


def interrupted(error: BaseException, code: int) -> Callable[[], None]:
    """A training that sees an interruption and leaves in its own way, as Lightning does."""

    def script() -> None:
        try:
            raise error
        except KeyboardInterrupt:
            sys.exit(code)

    return script


def raises(error: BaseException) -> Callable[[], None]:
    def script() -> None:
        raise error

    return script


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (raises(Stop("stopped at 3")), ("stopped", 130, "stopped at 3")),
        (raises(KeyboardInterrupt()), ("stopped", 130, "KeyboardInterrupt")),
        (interrupted(Stop("stopped at 3"), 1), ("stopped", 1, "stopped at 3")),
        (interrupted(KeyboardInterrupt(), 4), ("stopped", 4, "KeyboardInterrupt")),
        (interrupted(KeyboardInterrupt(), 0), ("ok", 0, "")),
        (raises(SystemExit(3)), ("exception", 3, "SystemExit: 3")),
        (raises(SystemExit("no data")), ("exception", 1, "SystemExit: no data")),
        (raises(ValueError("bad")), ("exception", 1, "ValueError: bad")),
    ],
)
def test_how_a_script_ended(script: Callable[[], None], expected: tuple[str, int, str]) -> None:
    with pytest.raises(BaseException) as caught:
        script()
    assert how_it_ended(caught.value) == expected
