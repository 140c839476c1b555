"""Keeps `torch.compile` away from tuimon's own code, at no cost per call. Changes no graph.

Between the graphs of a compiled function Python runs as usual, but every frame is offered to the
compiler: without this it would compile hooks and statistics, again and again.
"""

from __future__ import annotations

from types import CodeType


def leave_alone(code: CodeType, *, callees: bool) -> None:
    """Have frames of `code` run as they are; with `callees` also everything called from there.

    What the compiler traces through, rather than finds between two graphs, is not affected: a
    wrapper asks `torch.compiler.is_compiling` and passes through.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # torch before 2.7: the hooks still work, only slower in such gaps
        return
    below = _FrameAction.SKIP if callees else _FrameAction.DEFAULT
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, below))
