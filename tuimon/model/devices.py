"""What a driver says of an accelerator."""

from __future__ import annotations

import msgspec


class DeviceReading(msgspec.Struct, frozen=True, array_like=True):
    """One accelerator as its driver describes it; every figure may be missing."""

    index: int
    name: str
    kind: str = "nvidia"
    uuid: str = ""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation_frac: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
