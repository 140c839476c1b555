"""NVIDIA devices through NVML: only stable calls, every figure optional, nothing ever raised.

The module `pynvml` (distribution nvidia-ml-py) is imported when a reader first reads, because
NVML state must not be inherited across a fork.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuimon.model.records import DeviceReading
from tuimon.model.text import plain

MAX_DEVICES = 64  # of one host; NVML itself serves no more
_RETRY_READS = 60  # reads between two attempts to start NVML: a driver may come back
_MIG_ON = 1  # NVML_DEVICE_MIG_ENABLE


@dataclass(frozen=True)
class _Device:
    """One device the training may use. `is_slice`: a MIG instance or a device cut into some."""

    index: int
    handle: Any
    name: str
    uuid: str
    is_slice: bool
    owns_memory: bool


class NvidiaReader:
    """Reads the devices that a training sees.

    Attributes:
        note: why there is no reading or which figure is missing, one sentence; "" otherwise.
    """

    def __init__(self, visible: str | None = None, nvml: Any = None) -> None:
        """Remember what to read.

        Args:
            visible: the training's CUDA_VISIBLE_DEVICES; None shows every device.
            nvml: a module with the interface of pynvml; None imports it.
        """
        self._visible = visible
        self._nvml = nvml
        self._devices: list[_Device] | None = None
        self._reads = 0
        self.note = ""

    def read(self) -> list[DeviceReading]:
        """A reading of each visible device; empty with a `note` where there is none."""
        try:
            if self._devices is None and not self._start():
                return []
            return [self._reading(device) for device in self._devices or []]
        except Exception as error:  # a driver in trouble must not take the scribe with it
            self._devices = None
            self.note = f"NVML failed: {plain(str(error), 120)}"
            return []

    def close(self) -> None:
        """Let go of NVML."""
        if self._devices is not None:
            self._devices = None
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()

    def _start(self) -> bool:
        self._reads += 1
        if self._reads > 1 and self._reads % _RETRY_READS:
            return False
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError:
                self.note = "no NVIDIA readings: the package nvidia-ml-py is not installed"
                return False
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self.note = _why(nvml, error)
            return False
        self._devices = self._visible_devices()
        if not self._devices:
            self.note = self.note or "no NVIDIA device is visible to the training"
        return True

    def _visible_devices(self) -> list[_Device]:
        nvml = self._nvml
        count = min(MAX_DEVICES, int(nvml.nvmlDeviceGetCount()))
        self.note = "" if count else "no NVIDIA device on this host"
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [_text(self._ask(nvml.nvmlDeviceGetUUID, handle)) for handle in handles]
        if self._visible is None:
            return [self._device(i, i, handles[i], uuids[i]) for i in range(count)]
        chosen: list[_Device] = []
        for token in (part.strip() for part in self._visible.split(",")):
            if token.upper().startswith("MIG-"):
                found = self._mig(len(chosen), token)
                if found is None:
                    break
                chosen.append(found)
                continue
            place = _place(token, uuids)
            # CUDA reads the list up to the first entry that names no device.
            if place is None:
                break
            chosen.append(self._device(len(chosen), place, handles[place], uuids[place]))
        if len({device.uuid or device.index for device in chosen}) < len(chosen):
            self.note = "CUDA_VISIBLE_DEVICES names a device twice, which hides all of them"
            return []
        return chosen

    def _device(self, index: int, place: int, handle: Any, uuid: str) -> _Device:
        nvml = self._nvml
        mode = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        is_cut = mode is not None and mode[0] == _MIG_ON
        name = _text(self._ask(nvml.nvmlDeviceGetName, handle)) or f"NVIDIA device {place}"
        if is_cut:
            name += " (MIG)"
        return _Device(index, handle, name, uuid, is_slice=is_cut, owns_memory=not is_cut)

    def _mig(self, index: int, uuid: str) -> _Device | None:
        nvml = self._nvml
        handle = self._ask(nvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None:
            self.note = f"no MIG instance {plain(uuid, 60)} on this host"
            return None
        name = _text(self._ask(nvml.nvmlDeviceGetName, handle)) or "MIG instance"
        return _Device(index, handle, name, uuid, is_slice=True, owns_memory=True)

    def _reading(self, device: _Device) -> DeviceReading:
        nvml, handle = self._nvml, device.handle
        used = total = utilisation = None
        # Figures of a whole card say nothing about the slice that the training has of it.
        if device.owns_memory:
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
            # Unified memory: not supported, or a total of 0.
            if memory is not None and memory.total > 0:
                used, total = int(memory.used), int(memory.total)
        if not device.is_slice:
            rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
            utilisation = None if rates is None else rates.gpu / 100
        celsius = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        return DeviceReading(
            index=device.index,
            name=device.name,
            uuid=device.uuid,
            memory_used_bytes=used,
            memory_total_bytes=total,
            utilisation_frac=utilisation,
            temperature_c=None if celsius is None else float(celsius),
            power_w=None if milliwatts is None else milliwatts / 1000,
        )

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The answer of NVML; None where the device or the driver does not have it.

        Raises:
            NVMLError: the driver or the device is gone, so no answer is to be trusted.
        """
        nvml = self._nvml
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            if _code(error) in _lost_codes(nvml):
                raise
            return None


def _place(token: str, uuids: list[str]) -> int | None:
    """Index of the device that one entry of CUDA_VISIBLE_DEVICES names; None when none."""
    if token.isdecimal():
        return int(token) if int(token) < len(uuids) else None
    if not token.upper().startswith("GPU-"):
        return None
    found = [i for i, uuid in enumerate(uuids) if uuid.lower().startswith(token.lower())]
    return found[0] if len(found) == 1 else None


def _code(error: Any) -> int | None:
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def _lost_codes(nvml: Any) -> set[int]:
    return {nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_GPU_IS_LOST}


def _why(nvml: Any, error: Any) -> str:
    """Why NVML does not start, in words for a person."""
    reasons = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver on this host",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
        nvml.NVML_ERROR_NO_PERMISSION: "no permission to talk to the NVIDIA driver",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "NVIDIA driver and library differ in version; a reboot helps"
        ),
    }
    return reasons.get(_code(error) or 0, f"NVML does not start: {plain(str(error), 120)}")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return plain(value, 120) if isinstance(value, str) else ""
