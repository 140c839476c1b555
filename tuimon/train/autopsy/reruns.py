"""Runs the kept forwards of a step again, inside the sandbox, and hands back what engines saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs
from torch.utils._pytree import tree_leaves, tree_map

from tuimon.model.autopsy import COMPUTED, LEAF, OPERATION
from tuimon.train.autopsy import looks, streams
from tuimon.train.autopsy.answers import Answer
from tuimon.train.autopsy.merging import CLOSURE, FRAMES, MODEL, Part, merge, part_of
from tuimon.train.autopsy.names import Named, named_arguments
from tuimon.train.autopsy.poison import Poison
from tuimon.train.autopsy.rerun import read_autocast, rerun_closure, rerun_model
from tuimon.train.autopsy.restore import CannotKeep
from tuimon.train.autopsy.sandbox import sandbox
from tuimon.train.autopsy.scene import Call, Scenes
from tuimon.train.autopsy.sites import caller_place
from tuimon.train.autopsy.tracer import Limits
from tuimon.train.layers import unwrap
from tuimon.train.leaves import leaves_of

if TYPE_CHECKING:
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

MAX_NAMED = 64
SHORT = "steps are too short for their forwards to be kept, so the model was not run again"
NOTHING_KEPT = "no training forward of a watched model led to this"
MODIFIED = "an input was written to after the forward had begun: it may not be what it was"
_GIVEN = ("constant", "target", "batch", COMPUTED)  # what code of the script may have computed
SEEDED = "the gradient that came back to the output was not kept: ones stood in for it"


class Closure:
    """A call of `mon.forward(fn)`.

    Attributes:
        disturbs: `fn` itself ran a backward or an update, so that it is not run again.
    """

    __slots__ = ("args", "autocast", "disturbs", "function", "generators", "kwargs", "random")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        generators: Sequence[Any] = (),
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.random = {name: streams.read(name) for name in streams.PROCESS_WIDE}
        self.generators = [(each, streams.state_of(each)) for each in generators]
        self.autocast = read_autocast()
        self.disturbs = False


class Reruns:
    """Used by the training thread only, with the taps off.

    Attributes:
        closure: the newest call of `mon.forward(fn)` since the last update.
    """

    def __init__(self, observer: Observer, scenes: Scenes) -> None:
        self.closure: Closure | None = None
        self._answers: list[Answer] = []
        self._observer = observer
        self._scenes = scenes

    def forget(self) -> None:
        """Let go of what belongs to the script."""
        self.closure = None
        self._answers = []

    def batch(self) -> list[Named]:
        """The inputs of the kept forwards."""
        return [
            Named("batch", f"batch[{name}]", tensor)
            for call in self._scenes.calls
            for name, tensor in leaves_of(call.args, call.kwargs, MAX_NAMED)[0]
        ]

    # --- engines ----------------------------------------------------------------------------------

    def forwards(self, limit_s: float, fields: dict[str, Any]) -> list[Part]:
        """The loss is not finite: run what led to it again, up to the output of the model."""
        until_s = time.perf_counter() + limit_s
        if (part := self._closure(until_s, fields)) is not None:
            return [part]
        return self._calls(lambda call: self._model(call, until_s, None, loss_bad=True))

    def backwards(
        self,
        limit_s: float,
        bad: set[str],
        scale: float | None,
        fields: dict[str, Any],
        heard: bool = False,
    ) -> list[Part]:
        """Gradients are not finite: run forward and backward again.

        Args:
            limit_s: for all of it.
            bad: names of parameters whose gradients are.
            scale: what the gradients were multiplied by.
            fields: of the record, to be filled.
            heard: it is known already what the loss has to do with it.
        """
        until_s = time.perf_counter() + limit_s
        if (part := self._closure(until_s, fields, scale)) is not None:
            return [part]
        self._answers = []
        parts = self._calls(lambda call: self._with_gradients(call, until_s, bad))
        answers, self._answers = self._answers, []
        if heard or any(map(_accuses, parts)):
            return self._unscaled(parts, until_s, scale, fields)
        return [*parts, *self._around(answers, until_s, scale)]

    def _around(self, answers: list[Answer], until_s: float, scale: float | None) -> list[Part]:
        """No model is to blame, and nothing was heard of the loss: its code once more."""
        from tuimon.train.autopsy.lossgrads import retrace_backward

        found = retrace_backward(
            answers,
            roots=self._observer.roster.roots(),
            scale=scale,
            also=self.batch(),
            limits=_limits_until(until_s),
        )
        part = part_of(f"{MODEL}+{FRAMES}" if answers else FRAMES, found)
        return [part] if part.names_something else []

    def _unscaled(
        self, parts: list[Part], until_s: float, scale: float | None, fields: dict[str, Any]
    ) -> list[Part]:
        if scale is not None and scale > 1 and any(part.names_something for part in parts):
            fields["bad_at_scale_1"] = self._is_bad_unscaled(until_s, scale)
        return parts

    def frames(
        self, limit_s: float, parts: Sequence[Part], losses: Sequence[torch.Tensor]
    ) -> list[Part]:
        """No model is to blame: look at the code around them, in the script's living frames."""
        answers, self._answers = self._answers, []
        if any(part.engine in (MODEL, CLOSURE) and _accuses(part) for part in parts):
            return self._given(limit_s, parts)
        from tuimon.train.autopsy.frames import retrace

        began_s = time.perf_counter()
        found = retrace(
            (),
            roots=self._observer.roster.roots(),
            losses=losses,
            answers=answers,
            also=self.batch(),
            limits=_limits(limit_s),
        )
        part = part_of(f"{MODEL}+{FRAMES}" if answers else FRAMES, found)
        if part.verdict == OPERATION:
            return [part]
        ours = [part] if part.names_something or part.notes else []
        limit_s -= time.perf_counter() - began_s
        return [*ours, *self._given(limit_s, [*parts, *ours])]

    def _given(self, limit_s: float, parts: Sequence[Part]) -> list[Part]:
        """What was found ends at a value that was given: look for what made it."""
        fields = merge(parts)
        kinds = {leaf.kind for leaf in fields.get("leaves", ())}
        is_leaf = fields["verdict"] == LEAF and not kinds.isdisjoint(_GIVEN)
        met = any(part.poison and part.first is fields.get("first") for part in parts)
        if not is_leaf and not met:
            return []
        from tuimon.train.autopsy.frames import retrace

        batch = self.batch()
        poison = [each for part in parts for each in part.poison]
        with looks.apart():
            poison += [Poison(each.tensor.detach()) for each in batch if looks.is_bad(each.tensor)]
        roots = self._observer.roster.roots()
        found = part_of("", retrace(poison, roots=roots, also=batch, limits=_limits(limit_s)))
        if found.names_something:
            engine = str(fields["engine"]).partition("+")[0]
            found.engine = f"{engine}+{FRAMES}"
            found.path = [*found.path, *fields["path"]]
        return [found] if found.names_something or found.notes else []

    def update(self, track: Track, limit_s: float) -> Part:
        """The optimizer made something bad out of finite gradients: run it again on copies."""
        from tuimon.train.autopsy.optimizing import trace_optimizer

        optimizer = track.optimizer
        assert optimizer is not None
        names = dict(zip(map(id, track.plan.params), track.plan.names, strict=True))
        found = trace_optimizer(
            optimizer, names=names, called_from=caller_place(), limits=_limits(limit_s)
        )
        return part_of("", found)

    def _calls(self, examine: Callable[[Call], Part]) -> list[Part]:
        """Examine kept forwards, the newest first, until one says what went wrong."""
        scenes = self._scenes
        parts: list[Part] = []
        for call in reversed(scenes.calls):
            part = examine(call)
            parts.append(part)
            if _accuses(part):
                break
        if not scenes.calls:
            parts.append(Part("", notes=[SHORT if scenes.is_short else NOTHING_KEPT]))
        if scenes.dropped:
            note = f"{scenes.dropped} earlier forwards of this update were no longer kept"
            parts.append(Part("", notes=[note]))
        return parts

    def _with_gradients(self, call: Call, until_s: float, bad: set[str]) -> Part:
        grads = call.grads
        if grads is not None and any(grad is not None for grad in grads):
            return self._model(call, until_s, grads, loss_bad=False)
        found = self._model(call, until_s, _ones, loss_bad=False)
        if found.names_something and bad.isdisjoint(found.bad_grads):
            return Part(MODEL, notes=[*found.notes, "other gradients than those were bad"])
        found.notes = [*found.notes, SEEDED]
        return found

    def _is_bad_unscaled(self, until_s: float, scale: float) -> bool | None:
        """Whether it is bad without the scale; None where no gradient of an output tells."""
        tried = False
        for call in reversed(self._scenes.calls):
            came = [grad for grad in call.grads or () if grad is not None]
            if call.grads is None or not came or any(map(looks.is_bad, came)):
                continue  # what overflowed before it came back stays so
            tried = True
            grads = [None if grad is None else grad / scale for grad in call.grads]
            part = self._model(call, until_s, grads, loss_bad=False)
            if part.names_something or part.bad_grads:
                return True
        return False if tried else None

    def _model(self, call: Call, until_s: float, grads: Any, *, loss_bad: bool) -> Part:
        module = call.module()
        if module is None:
            return Part(MODEL, notes=["the model is gone"])
        root = unwrap(module)
        notes = [MODIFIED] if call.was_modified else []
        try:
            with sandbox(
                [root],
                random_states=call.random,
                registered=call.generators,
                also=_no_tensors((call.args, call.kwargs)),
            ) as kept:
                args, kwargs = _copied((call.args, call.kwargs))
                about: Mapping[str, Any] = {
                    "roots": self._observer.roster.roots(),
                    "autocast": call.autocast,
                    "called_from": call.place,
                    "loss_bad": loss_bad,
                }
                if grads is _ones:
                    first = rerun_model(root, args, kwargs, **about, limits=_limits_until(until_s))
                    grads = [_ones(output) for output in first.outputs]
                    args, kwargs = _copied((call.args, call.kwargs))
                found = rerun_model(
                    root, args, kwargs, output_grads=grads, **about, limits=_limits_until(until_s)
                )
                part = part_of(MODEL, found)
                _note_computed(part, call)
                if part.loss_code and not call.was_modified:
                    answer = Answer(module, call.args, call.kwargs, found.returned)
                    self._answers.insert(0, answer)
        except CannotKeep as reason:
            return Part(MODEL, notes=[f"the model was not run again: {reason}"])
        part.notes = [*notes, *part.notes, *kept.notes]
        return part

    def _closure(
        self, until_s: float, fields: dict[str, Any], scale: float | None = None
    ) -> Part | None:
        """Engine R, where the script passes its batches through `mon.forward`."""
        closure = self.closure
        if closure is None or closure.disturbs:
            return None
        roots = [(prefix, unwrap(root)) for prefix, root in self._observer.roster.roots()]
        try:
            with sandbox(
                [root for _, root in roots],
                random_states=closure.random,
                registered=closure.generators,
                also=[closure.function, *_no_tensors((closure.args, closure.kwargs))],
            ) as kept:
                args, kwargs = _copied((closure.args, closure.kwargs))
                found = rerun_closure(
                    closure.function,
                    args,
                    kwargs,
                    roots=roots,
                    loss_scale=scale,
                    autocast=closure.autocast,
                    limits=_limits_until(until_s),
                )
                fields["rerun_loss"] = found.loss
                part = part_of(CLOSURE, found)
        except CannotKeep as reason:
            return Part(CLOSURE, notes=[f"the batch was not run again: {reason}"])
        part.notes = [*part.notes, *kept.notes]
        return part


def _accuses(part: Part) -> bool:
    return part.names_something and not part.loss_code and not part.passed_on


def _note_computed(part: Part, call: Call) -> None:
    """An input with a graph came from another part of the training, not from the data."""
    given = {each.name: each.tensor for each in named_arguments(call.args, dict(call.kwargs))}
    with looks.apart():
        computed = {name for name, tensor in given.items() if not tensor.is_leaf}
    part.leaves = [
        structs.replace(leaf, kind=COMPUTED)
        if leaf.kind == "batch" and leaf.tensor.name in computed
        else leaf
        for leaf in part.leaves
    ]
    part.passed_on = part.verdict == LEAF and part.leaves[0].kind == COMPUTED


def _limits(limit_s: float) -> Limits:
    return Limits(deadline_s=limit_s)


def _limits_until(until_s: float) -> Limits:
    return _limits(max(0.0, until_s - time.perf_counter()))


def _copied(value: Any) -> Any:
    """The same batch in other tensors, cut from every graph."""
    return tree_map(_copy, value)


def _no_tensors(value: Any) -> list[Any]:
    """What a batch holds beside tensors, which a second run is given as it is."""
    return [leaf for leaf in tree_leaves(value) if not isinstance(leaf, torch.Tensor)]


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _ones(output: torch.Tensor) -> torch.Tensor | None:
    if not (output.dtype.is_floating_point or output.dtype.is_complex):
        return None
    return torch.ones_like(output)
