"""Modules whose forward changes a state that is kept at an odd place, each with a look at it.

A case is a function that gives (model, look); `look` reads the state without changing it.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dataclasses
import enum
import itertools
import mmap
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 3
Look = Callable[[], Any]
Case = tuple[nn.Module, Look]
CASES: dict[str, Callable[[], Case]] = {}


class Uses(nn.Module):
    """A linear layer after something odd, which is given as a function of the module."""

    def __init__(self, odd: Callable[[Any, torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.odd = odd

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.odd(self, x) if self.odd is not None else None
        return self.layer(given if isinstance(given, torch.Tensor) else x)


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    CASES[function.__name__] = function
    return function


# --- where things may lie -----------------------------------------------------------------------


class Holder:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Config:
    """A class that serves as a namespace, as many scripts have one."""

    step = 0
    history: list[int] = []  # noqa: RUF012


class Ticket:
    made = 0

    def take(self) -> None:
        Ticket.made += 1


class Doubles(torch.autograd.Function):
    backwards = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Doubles.backwards += 1
        return grad * 2


class Phase(enum.Enum):
    WARM = 1
    seen: int


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    numbers: list[int]


class Counting(dict):  # type: ignore[type-arg]
    """A container with a state of its own beside what it contains."""

    hits = 0

    def __missing__(self, key: Any) -> int:
        self.hits += 1
        return 0


NUMBERS = itertools.count(5)
TEACHER = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
TICKET = Ticket()
CONTEXT: contextvars.ContextVar[int] = contextvars.ContextVar("calls", default=0)
LOCK = threading.Lock()


@case
def a_buffer_in_a_closure() -> Case:
    model = Uses()
    model.register_buffer("seen", torch.zeros(2))
    seen = model.seen

    def count(*_: Any) -> None:
        seen.add_(1)

    model.register_forward_hook(count)
    return model, lambda: (seen, seen._version, model.seen is seen)


@case
def a_buffer_in_a_tuple_and_a_slot() -> Case:
    def odd(model: Any, x: torch.Tensor) -> None:
        model.pair[0].add_(1)
        model.pair[1].held.add_(1)
        model.holder.held.mul_(2)

    model = Uses(odd)
    for name in ("one", "two", "three"):
        model.register_buffer(name, torch.ones(2))
    model.pair = (model.one, Holder(model.two))
    model.holder = Holder(model.three)
    return model, lambda: (dict(model.named_buffers()), model.pair[0] is model.one)


@case
def a_full_deque_of_tensors() -> Case:
    model = Uses(lambda m, x: m.recent.append(x * next(NUMBERS)))
    model.recent = collections.deque([torch.zeros(4, 3), torch.ones(4, 3)], maxlen=2)
    return model, lambda: (list(model.recent), [id(each) for each in model.recent])


@case
def containers_with_attributes() -> Case:
    class Marked(list):  # type: ignore[type-arg]
        changes = 0

        def append(self, value: Any) -> None:
            self.changes += 1
            super().append(value)

    def odd(model: Any, x: torch.Tensor) -> None:
        model.counting["x"]
        model.marked.append(len(model.marked))

    model = Uses(odd)
    model.counting, model.marked = Counting(), Marked()
    return model, lambda: (model.counting.hits, model.marked.changes, list(model.marked))


@case
def memory_of_other_kinds() -> Case:
    def odd(model: Any, x: torch.Tensor) -> None:
        model.stored += 1
        model.numbers.append(1)
        model.number.value += 1
        model.shared[0] += 1
        model.mapped[:1] = bytes((model.mapped[0] + 1,))
        model.view[0] += 1
        model.bytes += b"x"
        model.refs[0] = x

    model = Uses(odd)
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115
    model.stored = np.memmap(file.name, dtype=np.float32, mode="w+", shape=(4,))
    model.numbers = array.array("i", [1])
    model.number = ctypes.c_int(3)
    model.shared = (ctypes.c_double * 2)(1, 2)
    model.mapped = mmap.mmap(-1, 16)
    model.view = memoryview(bytearray(4))
    model.refs = np.array([None, "a"], dtype=object)
    model.bytes = bytearray(b"a")
    return model, lambda: (
        np.array(model.stored),
        list(model.numbers),
        model.number.value,
        list(model.shared),
        model.mapped[:],
        (bytes(model.view), bytes(model.bytes)),
        [id(each) for each in model.refs],
    )


@case
def tensors_that_change_their_shape() -> Case:
    def odd(model: Any, x: torch.Tensor) -> None:
        model.cache.data = torch.cat([model.cache, x.detach().mean().view(1)])
        model.grows.resize_(len(model.grows) + 1)
        model.turned.t_()

    model = Uses(odd)
    model.cache, model.grows, model.turned = torch.ones(1), torch.ones(2), torch.ones(2, 3)
    return model, lambda: (model.cache, model.grows, model.turned, model.cache.data_ptr())


@case
def states_that_join_the_graph() -> Case:
    """Written to in the forward with what has a gradient: an attribute becomes part of the graph"""

    def odd(model: Any, x: torch.Tensor) -> torch.Tensor:
        y = model.layer(x)
        with torch.no_grad():
            model.average.mul_(0.5)
        model.memory[0] = y.mean()
        model.pair[0].add_(y.mean())
        return x + model.memory[0] + model.pair[0]

    class Detaches(Uses):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.memory.detach_()
            self.pair[0].detach_()
            return super().forward(x)

    model = Detaches(odd)
    model.memory, model.pair = torch.zeros(2), (torch.zeros(1), 0)
    model.average = torch.ones(2)
    return model, lambda: (
        model.memory.detach(),
        model.pair[0].detach(),
        model.average,
        [(each.requires_grad, id(each.grad_fn)) for each in (model.memory, model.pair[0])],
    )


@case
def a_tensor_of_inference() -> Case:
    def odd(model: Any, x: torch.Tensor) -> None:
        with torch.inference_mode():
            model.average.add_(x.mean())

    model = Uses(odd)
    with torch.inference_mode():
        model.average = torch.zeros(1)
    return model, lambda: model.average.clone()


@case
def a_sparse_tensor() -> Case:
    model = Uses(lambda m, x: [m.edges.mul_(2)])
    model.edges = torch.eye(3).to_sparse()
    return model, lambda: model.edges.to_dense()


@case
def classes_as_places() -> Case:
    def odd(model: Any, x: torch.Tensor) -> torch.Tensor:
        Config.step += 1
        Config.history.append(Config.step)
        TICKET.take()
        model.ticket.take()
        Phase.WARM.seen = Config.step  # type: ignore[misc]
        model.frozen.numbers.append(1)
        model.names.last = Config.step
        return Doubles.apply(x.requires_grad_())

    model = Uses(odd)
    model.ticket, model.frozen, model.names = Ticket(), Frozen([]), types.SimpleNamespace(last=0)
    return model, lambda: (
        (Config.step, list(Config.history), Ticket.made, vars(Phase.WARM).get("seen")),
        (Doubles.backwards, list(model.frozen.numbers), model.names.last),
    )


@case
def globals_of_the_script() -> Case:
    def odd(model: Any, x: torch.Tensor) -> torch.Tensor:
        with LOCK:
            return x * next(NUMBERS) + TEACHER(x).detach()

    return Uses(odd), lambda: (repr(NUMBERS), TEACHER.state_dict(), id(NUMBERS))


@case
def what_belongs_to_a_thread_or_a_context() -> Case:
    def odd(model: Any, x: torch.Tensor) -> None:
        CONTEXT.set(CONTEXT.get() + 1)
        model.local.calls += 1
        model.weak[model.layer] += 1

    model = Uses(odd)
    model.local = threading.local()
    model.local.calls = 0
    model.weak = weakref.WeakKeyDictionary({model.layer: 1})
    return model, lambda: (CONTEXT.get(), model.local.calls, model.weak[model.layer])


@case
def attributes_and_hooks_of_parameters() -> Case:
    def odd(model: Any, x: torch.Tensor) -> None:
        model.layer.weight.story.append(1)
        model.layer.weight.calls += 1
        model.kept[0].register_hook(lambda grad: grad * 2)

    model = Uses(odd)
    weight: Any = model.layer.weight
    weight.story, weight.calls = [], 0
    model.kept = (weight,)
    return model, lambda: (list(weight.story), weight.calls, len(weight._backward_hooks or ()))


@case
def a_module_that_is_hidden_from_its_parent() -> Case:
    def odd(model: Any, x: torch.Tensor) -> torch.Tensor:
        h = checkpoint(model.hidden[0], model.layer(x), use_reentrant=True)
        model.hidden[0](x).sum().backward()
        return h

    model = Uses(odd)
    model.hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))]
    inner = model.hidden[0]
    return model, lambda: (inner.state_dict(), [param.grad for param in inner.parameters()])
