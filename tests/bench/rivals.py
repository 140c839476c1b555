"""The other ways to get similar facts about a training loop, each as a step that can be timed."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator

import torch

from tests.bench.loops import Loop

Step = Callable[[], None]
# Entered before each block of steps and left after it, so that variants can take turns.
Variant = Callable[[], contextlib.AbstractContextManager[Step]]


def rivals(loop: Loop, stack: contextlib.ExitStack) -> dict[str, Variant]:
    """Those that can run here; what they keep open goes with the stack."""
    found: dict[str, Variant] = {
        "isfinite loop": lambda: _every_gradient_finite(loop),
        "detect_anomaly": lambda: _detect_anomaly(loop),
    }
    with contextlib.suppress(ImportError):
        found["wandb.watch"] = _wandb_watch(loop, stack)
        return found
    with contextlib.suppress(ImportError):
        found["tensorboard"] = _tensorboard_histograms(loop, stack)
    return found


@contextlib.contextmanager
def _every_gradient_finite(loop: Loop) -> Iterator[Step]:
    """The loop people write by hand."""

    def step() -> None:
        loop.backward()
        for param in loop.model.parameters():
            if param.grad is not None and not torch.isfinite(param.grad).all():
                raise FloatingPointError
        loop.update()

    yield step


@contextlib.contextmanager
def _detect_anomaly(loop: Loop) -> Iterator[Step]:
    """Torch's own debugging mode."""
    with torch.autograd.set_detect_anomaly(True):
        yield loop.step


def _wandb_watch(loop: Loop, stack: contextlib.ExitStack) -> Variant:
    """A histogram of every gradient at every step, the way `wandb.watch` makes them."""
    import wandb

    folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    run = wandb.init(mode="offline", dir=folder, settings={"silent": True})
    stack.callback(run.finish)

    @contextlib.contextmanager
    def watched() -> Iterator[Step]:
        def step() -> None:
            loop.step()
            run.log({})

        run.watch(loop.model, log="gradients", log_freq=1)
        try:
            yield step
        finally:
            run.unwatch(loop.model)

    return watched


def _tensorboard_histograms(loop: Loop, stack: contextlib.ExitStack) -> Variant:
    """A histogram of every gradient at every step into a TensorBoard file."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(stack.enter_context(tempfile.TemporaryDirectory()))
    stack.callback(writer.close)
    names = list(loop.model.named_parameters())

    def step() -> None:
        loop.backward()
        for name, param in names:
            if param.grad is not None:
                writer.add_histogram(name, param.grad)
        loop.update()

    return lambda: contextlib.nullcontext(step)
