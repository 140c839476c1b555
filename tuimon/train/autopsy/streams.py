"""Random streams: reading them, setting them, and seeing which of them moved. Draws nothing."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch

TORCH = "torch"
PYTHON = "Python's random"
NUMPY = "NumPy"
PROCESS_WIDE = (TORCH, PYTHON, NUMPY)

_State = tuple[Any, Any]  # the generator (None for a process-wide stream), its state


def read(name: str) -> Any:
    """The state of a process-wide stream on the host; None where it does not exist."""
    if name == TORCH:
        return torch.default_generator.get_state()
    if name == PYTHON:
        return random.getstate()
    numpy_random = _numpy_random()
    return None if numpy_random is None else numpy_random.get_state()


def write(name: str, state: Any) -> None:
    """Set a process-wide stream to a state that `read` gave."""
    if state is None:
        return
    if name == TORCH:
        torch.default_generator.set_state(state)
    elif name == PYTHON:
        random.setstate(state)
    elif (numpy_random := _numpy_random()) is not None:
        numpy_random.set_state(state)


def is_same(one: Any, other: Any) -> bool:
    """Whether two states of the same stream are equal."""
    if one is None or other is None:
        return one is other
    if isinstance(one, torch.Tensor):
        # No operator: modes of the script's would see it, and the state lies on the host anyway.
        return bool((one.numpy() == other.numpy()).all())
    if isinstance(one, tuple):
        if len(one) != len(other):
            return False
        return all(map(_is_equal, one, other))
    return bool(one == other)


def read_all(generators: Iterable[Any] = ()) -> Streams:
    """Every stream that a re-run could move."""
    return Streams(
        {name: read(name) for name in PROCESS_WIDE},
        _device_states(),
        [(each, state) for each in generators if (state := state_of(each)) is not None],
    )


class Streams:
    """States of streams at one moment."""

    def __init__(
        self, named: Mapping[str, Any], devices: list[_State], generators: list[_State]
    ) -> None:
        self.named = named
        self._devices = devices
        self._generators = generators

    def put_back(self) -> None:
        """Set every stream to what it was."""
        for name, state in self.named.items():
            write(name, state)
        for device, state in self._devices:
            torch.cuda.set_rng_state(state, device)
        for generator, state in self._generators:
            set_state(generator, state)


def is_generator(value: Any) -> bool:
    """Whether a value is a random stream of its own."""
    if isinstance(value, torch.Generator | random.Random):
        return True
    numpy_random = _numpy_random()
    return numpy_random is not None and isinstance(
        value, numpy_random.Generator | numpy_random.RandomState | numpy_random.BitGenerator
    )


def state_of(generator: Any) -> Any:
    """The state of a generator object; None for what is none."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if not is_generator(generator):
        return None
    if _is_bit_generator(generator):
        return generator.state
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    """Set a generator to a state that `state_of` gave."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif _is_bit_generator(generator):
        generator.state = state
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _is_bit_generator(generator: Any) -> bool:
    numpy_random = _numpy_random()
    return numpy_random is not None and isinstance(generator, numpy_random.BitGenerator)


def _device_states() -> list[_State]:
    """Of every CUDA device in use; seed and offset are kept on the host, so nothing waits."""
    if torch.version.cuda is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    return [(index, torch.cuda.get_rng_state(index)) for index in range(torch.cuda.device_count())]


def _numpy_random() -> Any:
    """`numpy.random` where the script has imported it; importing it is not ours to do."""
    return sys.modules.get("numpy.random")


def _is_equal(one: Any, other: Any) -> bool:
    same = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)
