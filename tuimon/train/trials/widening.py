"""The trial of a number format: the whole step is computed in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tuimon.train.autopsy import looks
from tuimon.train.autopsy.names import Names
from tuimon.train.taps.compiler import leave_alone
from tuimon.train.trials.changes import Setting
from tuimon.train.trials.fixes import plain_name
from tuimon.train.trials.guarding import Guard, Guarded, Spot

_HALF = (torch.float16, torch.bfloat16)
_SOFTMAX = ("softmax", "logsoftmax")  # their third argument says that they turn half into float32


class Widened(Guarded):
    """Parameters, data and results in half precision become float32; one place is watched.

    Attributes:
        beyond: a result there must be larger than that, or the format was not too small for it.
    """

    def __init__(self, spot: Spot, beyond: float = 0.0) -> None:
        super().__init__(spot)
        self.words = "the step was computed in float32"
        self.beyond = beyond

    @property
    def is_possible(self) -> bool:
        return True

    def data(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in _HALF:
            return tensor
        self.count += 1
        return tensor.float()

    def prepare(self, names: Names) -> None:
        with looks.apart():
            for module in names.modules.values():
                held = (*module._parameters.values(), *module._buffers.values())
                for tensor in held:
                    if tensor is not None and tensor.dtype in _HALF:
                        tensor.data = tensor.data.float()
                        self.count += 1

    def mode(self, setting: Setting) -> AbstractContextManager[Any]:
        stack = ExitStack()
        return _Both(stack, Guard(self, setting), _Wide(self))


class _Both:
    """Two modes that are entered and left together, as often as one."""

    def __init__(self, stack: ExitStack, *modes: AbstractContextManager[Any]) -> None:
        self._stack = stack
        self._modes = modes

    def __enter__(self) -> None:
        for mode in self._modes:
            self._stack.enter_context(mode)

    def __exit__(self, *error: Any) -> None:
        self._stack.pop_all().close()


class _Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Whatever asks for half precision gets float32, also what autocast asks for."""

    def __init__(self, widened: Widened) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._widened = widened

    def _dispatch(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("dtype") in _HALF:
            self._widened.count += 1
            kwargs = {**kwargs, "dtype": torch.float32}
        name = plain_name(func._schema.name)
        if name in _SOFTMAX and len(args) > 2 and args[2] is True:
            args = (*args[:2], False, *args[3:])
        return func(*args, **kwargs)


_Wide.__torch_dispatch__ = _Wide._dispatch  # type: ignore[method-assign,assignment]
leave_alone(_Wide._dispatch.__code__, callees=True)
