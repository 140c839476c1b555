"""Runs a few lines in a fresh interpreter and tells what they loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

# Imports every module below the packages; `__main__` modules are programs, not modules.
IMPORT_ALL = """
import importlib, pkgutil
def import_all(*names):
    for name in names:
        module = importlib.import_module(name)
        for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
"""
_BLOCK = """
import sys
class _Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, _Wall())
"""
_REPORT = """
import json, sys
print("loaded:" + json.dumps(sorted(sys.modules)))
"""


def loaded_by(code: str, *, blocked: Iterable[str] = ()) -> set[str]:
    """Names in `sys.modules` after `code` ran where `blocked` cannot be imported."""
    program = _BLOCK.format(blocked=set(blocked)) + IMPORT_ALL + code + _REPORT
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("loaded:"))
    return set(json.loads(line.removeprefix("loaded:")))


def top_levels(modules: Iterable[str]) -> set[str]:
    """The first words of dotted names."""
    return {name.partition(".")[0] for name in modules}
