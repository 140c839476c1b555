"""NVML readings with a fake driver that raises the real binding's errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tuimon.hw.nvidia import NvidiaReader

GIB = 1 << 30


class FakeNvml:
    """Two cards and one MIG instance; `fails` maps a call to the error code it raises."""

    def __init__(self, *, fails: dict[str, int] | None = None, mig: bool = False) -> None:
        self.fails = fails or {}
        self.mig = mig
        self.started = 0
        self.cards = 2

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name[4:5] != name[4:5].upper():
            return getattr(pynvml, name)
        if not hasattr(pynvml, name):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name in self.fails:
                raise pynvml.NVMLError(self.fails[name])
            return self.answer(name, *arguments)

        return call

    def answer(self, name: str, *arguments: Any) -> Any:
        if name == "nvmlInit":
            self.started += 1
        handle = arguments[0] if arguments else None
        return {
            "nvmlDeviceGetCount": self.cards,
            "nvmlDeviceGetHandleByIndex": handle,
            "nvmlDeviceGetHandleByUUID": "slice" if handle == "MIG-77" else None,
            "nvmlDeviceGetUUID": f"GPU-{'ab'[handle]}123" if isinstance(handle, int) else b"",
            "nvmlDeviceGetName": b"H200\x1b" if handle == 1 else f"Card {handle}",
            "nvmlDeviceGetMigMode": [int(self.mig), 0],
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=GIB, total=80 * GIB),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=42),
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetPowerUsage": 123_456,
        }.get(name)


def names(visible: str | None) -> list[tuple[int, str]]:
    return [(d.index, d.uuid) for d in NvidiaReader(visible, FakeNvml()).read()]


def test_every_figure_of_a_card():
    first, second = NvidiaReader(None, FakeNvml()).read()
    assert (first.index, first.name, first.uuid) == (0, "Card 0", "GPU-a123")
    assert (first.memory_used_bytes, first.memory_total_bytes) == (GIB, 80 * GIB)
    assert (first.utilisation_frac, first.temperature_c, first.power_w) == (0.42, 55.0, 123.456)
    assert second.name == "H200\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [(0, "GPU-a123"), (1, "GPU-b123")]),
        ("1", [(0, "GPU-b123")]),
        ("1, 0", [(0, "GPU-b123"), (1, "GPU-a123")]),
        ("GPU-b123", [(0, "GPU-b123")]),
        ("gpu-b", [(0, "GPU-b123")]),
        ("0,7,1", [(0, "GPU-a123")]),
        ("-1,0", []),
        ("GPU-,0", []),
        ("", []),
        ("0,0", []),
        ("what", []),
    ],
)
def test_only_what_the_training_sees(visible: str | None, expected: list[tuple[int, str]]):
    assert names(visible) == expected


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        ("nvmlDeviceGetMemoryInfo", ("memory_used_bytes", "memory_total_bytes")),
        ("nvmlDeviceGetUtilizationRates", ("utilisation_frac",)),
        ("nvmlDeviceGetTemperature", ("temperature_c",)),
        ("nvmlDeviceGetPowerUsage", ("power_w",)),
        ("nvmlDeviceGetMigMode", ()),
    ],
)
def test_what_is_not_supported_is_missing_and_the_rest_stays(call: str, missing: tuple[str, ...]):
    reader = NvidiaReader("0", FakeNvml(fails={call: pynvml.NVML_ERROR_NOT_SUPPORTED}))
    (device,) = reader.read()
    figures = (
        *("memory_used_bytes", "memory_total_bytes", "utilisation_frac", "temperature_c"),
        "power_w",
    )
    assert tuple(f for f in figures if getattr(device, f) is None) == missing
    assert reader.note == ""


def test_unified_memory_without_a_total_is_missing():
    nvml = FakeNvml()
    nvml.answer = lambda name, *a: (  # type: ignore[method-assign]
        SimpleNamespace(used=0, total=0)
        if name == "nvmlDeviceGetMemoryInfo"
        else FakeNvml.answer(nvml, name, *a)
    )
    (device,) = NvidiaReader("0", nvml).read()
    assert (device.memory_used_bytes, device.memory_total_bytes) == (None, None)


def test_a_card_cut_into_instances_shows_dashes():
    (device,) = NvidiaReader("0", FakeNvml(mig=True)).read()
    assert device.name == "Card 0 (MIG)"
    assert (device.memory_used_bytes, device.utilisation_frac) == (None, None)
    assert device.temperature_c == 55.0


def test_an_instance_has_memory_of_its_own_but_no_utilisation():
    (device,) = NvidiaReader("MIG-77", FakeNvml(mig=True)).read()
    assert (device.memory_used_bytes, device.utilisation_frac) == (GIB, None)
    reader = NvidiaReader("MIG-nope", FakeNvml(mig=True))
    assert reader.read() == []
    assert "MIG-nope" in reader.note


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver on this host"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "differ in version"),
        (pynvml.NVML_ERROR_UNKNOWN, "does not start"),
    ],
)
def test_a_driver_that_does_not_start_is_a_sentence(code: int, words: str):
    reader = NvidiaReader(None, FakeNvml(fails={"nvmlInit": code}))
    assert reader.read() == []
    assert words in reader.note
    reader.close()


def test_a_host_without_devices_says_so():
    nvml = FakeNvml()
    nvml.cards = 0
    reader = NvidiaReader(None, nvml)
    assert reader.read() == []
    assert reader.note == "no NVIDIA device on this host"


def test_a_lost_device_ends_the_reading_and_it_is_tried_again_later():
    nvml = FakeNvml()
    reader = NvidiaReader(None, nvml)
    assert len(reader.read()) == 2
    nvml.fails["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert reader.read() == []
    assert "NVML failed" in reader.note
    nvml.fails.clear()
    readings = [len(reader.read()) for _ in range(100)]
    assert readings[0] == 0
    assert readings[-1] == 2
    assert nvml.started == 2
    assert reader.note == ""


def test_a_binding_that_breaks_in_a_new_way_does_not_raise():
    nvml = FakeNvml()
    nvml.answer = lambda name, *a: 1 / 0  # type: ignore[method-assign]
    reader = NvidiaReader(None, nvml)
    assert reader.read() == []
    assert "division by zero" in reader.note


def test_without_a_driver_the_real_binding_gives_a_sentence_or_devices():
    reader = NvidiaReader(None)
    devices = reader.read()
    assert bool(devices) != bool(reader.note)
    reader.close()
