"""Replays a step with a change and says what was not finite: the model alone, or a closure.

Runs inside `autopsy.sandbox`; gradients go nowhere, and nothing of the replay is kept.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from tuimon.model.text import plain
from tuimon.train.autopsy import looks, nodes
from tuimon.train.autopsy.names import Names, flat_tensors
from tuimon.train.autopsy.rerun import AutocastState, gradients, loss_of
from tuimon.train.autopsy.reruns import Closure
from tuimon.train.autopsy.restore import CannotKeep
from tuimon.train.autopsy.sandbox import sandbox
from tuimon.train.autopsy.scene import Call
from tuimon.train.autopsy.sites import Place
from tuimon.train.autopsy.surroundings import surroundings
from tuimon.train.autopsy.upstream import outermost
from tuimon.train.layers import unwrap
from tuimon.train.signals import is_from_handler
from tuimon.train.trials.changes import Change, Setting

Roots = list[tuple[str, nn.Module]]
MAX_DEPTH = 8  # nodes between a loss and the sum that it is
_SUM = 2  # `reduction` of torch's losses
_PLUMBING = ("Mul", "Div", "Neg", "View", "Squeeze", "Reshape", "ToCopy")


@dataclass
class Outcome:
    """What a replay showed.

    Attributes:
        bad: what was not finite: "loss", "output[0]", "gradient of head.weight".
        loss: where the replay has one; without a loss scale.
        summed: elements that the loss adds up; 0 where it is no sum.
        problem: why it did not come to its end; "" when it did.
    """

    bad: list[str] = field(default_factory=list)
    loss: float | None = None
    summed: int = 0
    problem: str = ""

    @property
    def is_sound(self) -> bool:
        """It came to its end, and all of it was finite."""
        return not self.problem and not self.bad

    @property
    def is_bad(self) -> bool:
        """It came to its end, and something was not finite."""
        return not self.problem and bool(self.bad)


class Stage(Protocol):
    """A way to replay a step."""

    def play(self, change: Change) -> Outcome:
        """Replay it with a change."""
        ...

    @property
    def batch(self) -> int:
        """Samples along the first axis; 0 where that is not known."""
        ...


class ModelStage:
    """One kept forward, and the backward from the gradient that came back to its output."""

    def __init__(self, call: Call, roots: Roots, *, backward: bool) -> None:
        self._call = call
        self._roots = roots
        self._backward = backward

    @property
    def batch(self) -> int:
        return batch_of(self._call)

    @property
    def is_possible(self) -> bool:
        """Whether what is needed was kept."""
        if self._call.module() is None:
            return False
        return not self._backward or any(grad is not None for grad in self._call.grads or ())

    def play(self, change: Change) -> Outcome:
        call, module = self._call, self._call.module()
        assert module is not None
        root = unwrap(module)

        def run(replay: Replay) -> None:
            args, kwargs = given((call.args, call.kwargs), change)
            with replay.forward(call.autocast):
                outputs = flat_tensors(replay.enter(lambda: root(*args, **kwargs)))
            replay.look("output", outputs)
            if self._backward and call.grads is not None and len(call.grads) == len(outputs):
                grads = outermost(outputs, _fitting(outputs, call.grads))
                with looks.apart():
                    came_bad = any(grad is not None and looks.is_bad(grad) for grad in grads)
                if came_bad:
                    replay.outcome.problem = "the gradient that came back was not finite already"
                else:
                    replay.backward(outputs, grads)

        states, generators = call.random, call.generators
        return replayed(
            self._roots,
            change,
            run,
            random_states=states,
            registered=generators,
            also=no_tensors((call.args, call.kwargs)),
        )


class ClosureStage:
    """A call of `mon.forward(fn)`, and the backward from the loss that it gives."""

    def __init__(self, closure: Closure, roots: Roots, scale: float | None) -> None:
        self._closure = closure
        self._roots = roots
        self._scale = scale or 1.0

    @property
    def batch(self) -> int:
        return first_size((self._closure.args, self._closure.kwargs))

    def play(self, change: Change) -> Outcome:
        closure = self._closure

        def run(replay: Replay) -> None:
            args, kwargs = given((closure.args, closure.kwargs), change)
            with replay.forward(closure.autocast):
                loss = loss_of(replay.enter(lambda: closure.function(*args, **kwargs)))
            replay.take_loss(loss, self._scale)

        return replayed(
            self._roots,
            change,
            run,
            random_states=closure.random,
            registered=closure.generators,
            also=[closure.function, *no_tensors((closure.args, closure.kwargs))],
        )


class Replay:
    """One replay inside the sandbox.

    Attributes:
        names: of its parameters and modules.
        outcome: what it has shown so far.
        followed: the line of the script that is being followed.
    """

    def __init__(self, roots: Roots, change: Change) -> None:
        self.names = Names(roots)
        self.outcome = Outcome()
        self.followed: Callable[[], Place | None] = lambda: None
        setting = Setting(self.names, _enter.__code__, lambda: self.followed())
        self._change = change
        change.begin()
        change.prepare(self.names)
        self._mode = change.mode(setting)

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [*self.names.parameters.values()]

    def enter(self, run: Callable[[], Any]) -> Any:
        """Call what belongs to the replay."""
        return _enter(run)

    @contextlib.contextmanager
    def forward(
        self,
        autocast: Sequence[AutocastState] = (),
        inner: contextlib.AbstractContextManager[Any] | None = None,
    ) -> Iterator[None]:
        """Everything that stands round a forward.

        Args:
            autocast: as it was.
            inner: sees what the change lets through; it calls the models, so that which of them
                runs is followed only there.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for state in autocast:
                stack.enter_context(
                    torch.autocast(
                        state.device_type,
                        state.dtype,
                        enabled=state.enabled,
                        cache_enabled=False,
                    )
                )
            if inner is None:
                stack.enter_context(self.following())
            else:
                stack.enter_context(inner)
            stack.enter_context(self._mode)
            yield

    def following(self) -> contextlib.AbstractContextManager[None]:
        """Know which module runs."""
        return self.names.following(lambda _: False)

    def look(self, what: str, tensors: Sequence[torch.Tensor]) -> None:
        """Note those that are not finite."""
        with looks.apart():
            self.outcome.bad += [
                what if what == "loss" else f"{what}[{index}]"
                for index, tensor in enumerate(tensors)
                if looks.is_bad(tensor.detach())
            ]

    def take_loss(self, loss: torch.Tensor | None, scale: float) -> None:
        """The loss is known: look at it, and run the backward from there."""
        if loss is None:
            self.outcome.problem = "no loss came out of the replay"
            return
        with looks.apart():
            self.outcome.loss = float(loss.detach())
        self.outcome.summed = summed_over(loss)
        self.look("loss", [loss])
        if loss.requires_grad:
            self.backward([loss], [torch.full_like(loss, scale)])

    def backward(
        self, outputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
    ) -> None:
        """Gradients of the parameters, which are looked at and dropped."""
        with looks.apart():
            grads = [None if grad is None else self._change.seed(grad) for grad in grads]
        pairs = [
            (tensor, grad)
            for tensor, grad in zip(outputs, grads, strict=True)
            if grad is not None and tensor.requires_grad
        ]
        wanted = {name: p for name, p in self.names.parameters.items() if p.requires_grad}
        if not pairs or not wanted:
            return
        graphs = [tensor.grad_fn for tensor, _ in pairs]
        with self.following(), self._mode:
            found = _enter(lambda: gradients(pairs, [*wanted.values()], graphs))
        with looks.apart():
            for name, grad in zip(wanted, found, strict=True):
                if grad is not None:
                    self._change.gradient(name, grad)
                    if looks.is_bad(grad):
                        self.outcome.bad.append(f"gradient of {name}")


def replayed(roots: Roots, change: Change, run: Callable[[Replay], None], **about: Any) -> Outcome:
    """Replay in a sandbox; whatever goes wrong in it is told as a problem.

    Args:
        roots: (prefix of its names, module) of all models.
        change: what is changed.
        run: the replay itself.
        about: as `sandbox` takes it.
    """
    inner = [(prefix, unwrap(root)) for prefix, root in roots]
    outcome = Outcome(problem="it was not run")
    try:
        with sandbox([root for _, root in inner], **about):
            replay = Replay(inner, change)
            with surroundings(replay.parameters), _uncached():
                try:
                    run(replay)
                    outcome = replay.outcome
                except (Exception, SystemExit) as error:
                    if is_from_handler(error):
                        raise
                    words = plain(f"{type(error).__name__}: {error}", 200)
                    outcome = Outcome(problem=f"the replay failed: {words}")
    except CannotKeep as reason:
        return Outcome(problem=f"the step was not replayed: {reason}")
    return outcome


def given(value: Any, change: Change) -> Any:
    """The same arguments in other tensors, cut from every graph, as the change has them."""

    def copy(each: Any) -> Any:
        if not isinstance(each, torch.Tensor):
            return each
        with looks.apart():
            changed = change.data(each.detach().clone())
        return changed.requires_grad_(each.requires_grad and changed.is_floating_point())

    return tree_map(copy, value)


def summed_over(loss: torch.Tensor) -> int:
    """Elements that a loss adds up, where that is the last that was done to them; else 0."""
    node, depth = loss.grad_fn, 0
    while node is not None and depth < MAX_DEPTH:
        name = node.name()
        if name.startswith("SumBackward"):
            return math.prod(getattr(node, "_saved_self_sym_sizes", ()) or (0,))
        if getattr(node, "_saved_reduction", None) == _SUM:
            saved = nodes.saved(node, "self")
            return 0 if saved is None else saved.numel()
        below = [each for each, _ in node.next_functions if each is not None]
        if not name.startswith(_PLUMBING) or len(below) != 1:
            return 0
        node, depth = below[0], depth + 1
    return 0


def no_tensors(value: Any) -> list[Any]:
    """What a batch holds beside tensors, which a replay is given as it is."""
    return [leaf for leaf in tree_leaves(value) if not isinstance(leaf, torch.Tensor)]


def batch_of(call: Call) -> int:
    """Samples of a kept forward."""
    return first_size((call.args, call.kwargs))


def first_size(value: Any) -> int:
    """Length of the first axis of the first tensor that has one."""
    return next((int(tensor.shape[0]) for tensor in flat_tensors(value) if tensor.dim()), 0)


def _fitting(
    outputs: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The kept gradients in the number format that outputs have now."""
    return [
        None if grad is None or grad.shape != tensor.shape else grad.to(tensor.dtype)
        for tensor, grad in zip(outputs, grads, strict=True)
    ]


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """What autocast casts here must not be met by the script."""
    cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cache)


def _enter(run: Callable[[], Any]) -> Any:
    """The frame above which nothing belongs to a replay."""
    return run()
