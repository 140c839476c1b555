"""What stands in a loaded file for objects of classes that are not known and must not run."""

from __future__ import annotations

import sys
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from typing import Any


class StandIn:
    """Keeps what it is made from and does nothing with it."""

    def __new__(cls, *arguments: Any) -> StandIn:
        """Every way of making an object ends here."""
        made = super().__new__(cls)
        made.arguments = arguments
        made.state = None
        return made

    def __init__(self, *arguments: Any) -> None:
        self.arguments: tuple[Any, ...] = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Plain data of the standard library. Everything else of it does something when it is called.
_DATA = {
    "argparse": {"Namespace"},
    "builtins": {"object", "set", "frozenset", "complex", "slice", "bytearray", "range"},
    "collections": {"defaultdict", "deque"},
    "copyreg": {"_reconstructor"},
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "enum": {"Enum", "IntEnum", "StrEnum"},
    "fractions": {"Fraction"},
    "pathlib._local": {"Path", "PosixPath", "PurePath", "PurePosixPath"},
    "pathlib": {"Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "types": {"SimpleNamespace"},
    "uuid": {"UUID"},
}
_TORCH = (
    "torch.nn.", "torch.optim.", "torch.amp.", "torch.cuda.amp.", "torch.ao.", "torch.utils.data.",
    "torch.torch_version.",
)  # fmt: skip
_NUMPY = (
    "numpy.ndarray", "numpy.dtype", "numpy.dtypes.", "numpy.core.multiarray.",
    "numpy._core.multiarray.", "numpy.random.",
)  # fmt: skip


def may_stand_for(name: str) -> bool:
    """Whether a class of this full name may be what a checkpoint keeps beside its weights.

    Nothing of it is executed in any case. The answer is no for what no checkpoint needs and only
    an attack asks for, so that the file is refused rather than called healthy.
    """
    module, _, last = name.rpartition(".")
    # Pickles of protocol 2 have the names of Python 2: `commands` is `subprocess`.
    module, last = NAME_MAPPING.get((module, last), (IMPORT_MAPPING.get(module, module), last))
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return last in _DATA.get(module, ())
    if top == "torch":
        return name.startswith(_TORCH)
    if top == "numpy":
        return name.startswith(_NUMPY)
    return True
