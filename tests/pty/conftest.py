"""Terminals that are closed after a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pty.terminal import Open, Terminal


@pytest.fixture
def open_terminal() -> Iterator[Open]:
    """Opens terminals and closes them after the test."""
    opened: list[Terminal] = []

    def make(*args: str, **options: object) -> Terminal:
        opened.append(Terminal(*args, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for terminal in opened:
        terminal.close()
