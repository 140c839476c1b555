"""tuimon: a live training monitor for PyTorch that lives in the terminal.

Public names resolve lazily, so that `import tuimon` pulls in neither torch nor the screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tuimon.train.control.policy import NonFinite as NonFinite
    from tuimon.train.control.policy import Policy as Policy
    from tuimon.train.monitor import Monitor as Monitor
    from tuimon.train.monitor import Stop as Stop
    from tuimon.train.monitor import watch as watch

_PUBLIC = {
    "watch": "tuimon.train.monitor",
    "Monitor": "tuimon.train.monitor",
    "NonFinite": "tuimon.train.control.policy",
    "Policy": "tuimon.train.control.policy",
    "Stop": "tuimon.train.monitor",
}

__all__ = ["Monitor", "NonFinite", "Policy", "Stop", "__version__", "watch"]


def __getattr__(name: str) -> Any:
    """Import the module that owns a public name when it is first asked for."""
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'tuimon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
