"""Memory at the moment when there was not enough of it: figures that need no device to wait."""

from __future__ import annotations

import contextlib
import os
import re
import resource

import torch

from tuimon.model.crash import MemoryFigures

_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "unable to allocate",
)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_ASKED = re.compile(r"allocate:? ([\d.]+) ?(?:([kmgtp])i?b|bytes)", re.IGNORECASE)
# After one of these every call to the device fails or waits.
_LOST_DEVICE = ("device-side assert", "cuda error", "hip error", "acceleratorerror")


def is_shortage(error: BaseException) -> bool:
    """Whether an exception says that memory was not enough."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error)[:2000].lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _WORDS)


def asked_bytes(message: str) -> int | None:
    """What could not be had, by the words of the exception."""
    found = _ASKED.search(message)
    if found is None:
        return None
    with contextlib.suppress(ValueError):
        return int(float(found[1]) * _UNITS[(found[2] or "").lower()])
    return None


def memory_figures(message: str) -> list[MemoryFigures]:
    """The devices' allocators, then the host; the one that was short carries what was asked."""
    asked = asked_bytes(message)
    on_device = "cuda" in message.lower() or "gpu" in message.lower()
    figures = _devices(message, asked if on_device else None)
    figures.append(_host(None if on_device else asked))
    return figures


def _devices(message: str, asked: int | None) -> list[MemoryFigures]:
    lost = any(words in message.lower() for words in _LOST_DEVICE)
    if lost or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    named = re.search(r"GPU (\d+)", message)
    found = []
    for index in range(torch.cuda.device_count()):
        with contextlib.suppress(Exception):
            stats = torch.cuda.memory_stats(index)
            if not stats.get("reserved_bytes.all.peak"):
                continue
            is_short = named is None or int(named[1]) == index
            found.append(
                MemoryFigures(
                    device=f"cuda:{index}",
                    asked_bytes=asked if is_short else None,
                    allocated_bytes=stats.get("allocated_bytes.all.current"),
                    reserved_bytes=stats.get("reserved_bytes.all.current"),
                    peak_bytes=stats.get("allocated_bytes.all.peak"),
                    total_bytes=torch.cuda.get_device_properties(index).total_memory,
                )
            )
    return found


def _host(asked: int | None) -> MemoryFigures:
    resident = total = peak = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * page
    with contextlib.suppress(OSError, ValueError):
        unit = 1 if os.uname().sysname == "Darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return MemoryFigures(
        device="host",
        asked_bytes=asked,
        allocated_bytes=resident,
        peak_bytes=peak,
        total_bytes=total,
    )
