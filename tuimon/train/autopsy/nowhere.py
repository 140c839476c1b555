"""Takes the place of stdout and stderr while user code is run a second time."""

from __future__ import annotations

from threading import get_ident
from typing import Any


class Nowhere:
    """What was printed once is not printed again; other threads print as ever.

    Args:
        real: where everybody else prints; None where nobody else does.
    """

    encoding = "utf-8"
    errors = "replace"
    closed = False

    def __init__(self, real: Any = None) -> None:
        self._real = real
        self._thread = get_ident()

    def _is_ours(self) -> bool:
        return self._real is None or get_ident() == self._thread

    def write(self, text: Any) -> int:
        return len(text) if self._is_ours() else self._real.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not self._is_ours():
            self._real.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False if self._is_ours() else self._real.isatty()

    @property
    def buffer(self) -> Any:
        return self if self._is_ours() else self._real.buffer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._is_ours():
            raise AttributeError(name)
        return getattr(self._real, name)


NOWHERE = Nowhere()
