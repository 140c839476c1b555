"""Carries out the commands that change updates, clipping and learning rates, and takes them back.

Belongs to the training thread, like the gate that it answers through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tuimon.model import commands
from tuimon.model.commands import CLIP, LR, MAX_UNDONE
from tuimon.model.records import CLIP_ON
from tuimon.train.control.rates import in_words

if TYPE_CHECKING:
    from tuimon.train.control.gate import Gate
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

_CLIPS = commands.SetClip | commands.SetMaxNorm
_RATES = commands.ScaleLr | commands.SetLr | commands.ReleaseLr


class Changes:
    """What becomes of updates from the next one on."""

    def __init__(self, observer: Observer, gate: Gate) -> None:
        self._observer = observer
        self._gate = gate
        # The kind of each change, its words, and what puts back what was before, exactly.
        self._undo: deque[tuple[str, str, Callable[[], None]]] = deque(maxlen=MAX_UNDONE)

    def takes(self, request: commands.Request, track: Track) -> bool:
        """Carry out a command that changes updates; False for any other."""
        command = request.command
        if isinstance(command, commands.Undo):
            self._take_back(request, command.of, track)
            return True
        if not isinstance(command, _CLIPS | _RATES):
            return False
        if self._observer.inside.lead is not None:
            what = "of a clipping" if isinstance(command, _CLIPS) else "of a learning rate"
            self._gate.refuse(request, f"the optimizers step inside backward, out of reach {what}")
        elif isinstance(command, commands.SetClip):
            self._set_clip(request, command, self._first_clipped(track))
        elif isinstance(command, commands.SetMaxNorm):
            self._set_max_norm(request, command.max_norm, self._first_clipped(track))
        else:
            self._change_rates(request, command, track)
        return True

    def undo_newest(self) -> None:
        """Take back a change that other ranks could not make, before anybody was told of it."""
        if self._undo:
            self._undo.pop()[2]()

    def scale(self, factor: float) -> None:
        """Scale all learning rates from now on, as a part of another command."""
        words = f"{commands.ScaleLr(factor).words} of a roll back"
        self._undo.append((LR, words, self._put_rates()))
        self._observer.rates.scale(factor)

    def _take_back(self, request: commands.Request, kind: str, track: Track) -> None:
        found = next((each for each in reversed(self._undo) if kind in ("", each[0])), None)
        if found is None:
            self._gate.refuse(request, "nothing to undo: no change of clipping or rates stands")
            return
        old, was_set = self._in_words(track), self._asked_for()
        self._undo.remove(found)
        kind, called, put_back = found
        put_back()
        new = self._in_words(track)
        changed = [(word, was, now) for (word, was), (_, now) in zip(old, new, strict=True)]
        changed = [each for each in changed if each[1] != each[2]]
        step = self._first_clipped(track) if kind == CLIP else self._observer.roster.next_step()
        if not changed:  # of the optimizer that is told of, at least
            called += ", which had changed nothing" if self._asked_for() == was_set else ""
            self._gate.applied(request, None, None, step=step, reason=f"takes back {called}")
            self._gate.event("undo", f"undone: {called}", request, step=step)
            return
        words = " and ".join(word for word, _, _ in changed)
        before = ", ".join(was for _, was, _ in changed)
        after = ", ".join(now for _, _, now in changed)
        self._gate.applied(request, before, after, step=step, reason=f"takes back {called}")
        text = f"undone: {words} {before} → {after} from update {step} on"
        self._gate.event("undo", text, request, step=step)

    def _in_words(self, track: Track) -> list[tuple[str, str]]:
        clipping, whose = self._observer.clipping, self._observer.roster.primary or track
        optimizer = whose.optimizer
        rates = [] if optimizer is None else self._observer.rates.of(whose.index, optimizer)
        bound = "none" if clipping.max_norm is None else f"{clipping.max_norm:g}"
        return [
            ("clip", clipping.describe()),
            ("max_norm", bound),
            ("learning rate", in_words(rates)),
        ]

    def _asked_for(self) -> tuple[object, ...]:
        clipping, rates = self._observer.clipping, self._observer.rates
        return clipping.mode, clipping.max_norm, rates.factor, dict(rates.fixed)

    def _put_clipping(self) -> Callable[[], None]:
        clipping = self._observer.clipping
        mode, bound = clipping.mode, clipping.max_norm

        def put_back() -> None:
            clipping.mode, clipping.max_norm = mode, bound

        return put_back

    def _put_rates(self) -> Callable[[], None]:
        rates = self._observer.rates
        factor, fixed = rates.factor, dict(rates.fixed)

        def put_back() -> None:
            rates.factor, rates.fixed = factor, fixed

        return put_back

    def _first_clipped(self, track: Track) -> int:
        """Index of the first update that a change of clipping can still concern."""
        observer = self._observer
        clipped = any(call.touches(track.plan.ids) for call in observer.clips.calls)
        return observer.roster.next_step() + clipped

    def _set_clip(self, request: commands.Request, command: commands.SetClip, step: int) -> None:
        clipping = self._observer.clipping
        old = clipping.describe()
        if command.mode == CLIP_ON:
            bound = command.max_norm if command.max_norm is not None else clipping.bound
            if bound is None:
                self._gate.refuse(request, "no max_norm is known; name one")
                return
            self._undo.append((CLIP, command.words, self._put_clipping()))
            clipping.max_norm = bound
        else:
            self._undo.append((CLIP, command.words, self._put_clipping()))
        clipping.mode = command.mode
        new = clipping.describe()
        self._gate.applied(request, old, new, step=step)
        text = f"clip {old} → {new} from update {step} on"
        self._gate.event("clip", text, request, step=step)

    def _set_max_norm(self, request: commands.Request, bound: float, step: int) -> None:
        clipping = self._observer.clipping
        old = "none" if clipping.max_norm is None else f"{clipping.max_norm:g}"
        self._undo.append((CLIP, request.command.words, self._put_clipping()))
        clipping.max_norm = bound
        self._gate.applied(request, old, f"{bound:g}", step=step)
        text = f"max_norm {old} → {bound:g} from update {step} on"
        self._gate.event("clip", text, request, step=step)

    def _change_rates(
        self,
        request: commands.Request,
        command: commands.ScaleLr | commands.SetLr | commands.ReleaseLr,
        track: Track,
    ) -> None:
        roster, rates = self._observer.roster, self._observer.rates
        whose = roster.primary or track
        if isinstance(command, commands.SetLr):
            known = {each.index: each for each in roster.tracks.values()}
            whose = known.get(command.optimizer, whose)
        optimizer = whose.optimizer
        if optimizer is None or not optimizer.param_groups:
            self._gate.refuse(request, "the optimizer is gone")
            return
        groups = range(len(optimizer.param_groups))
        old = in_words(rates.of(whose.index, optimizer))
        put_back = self._put_rates()
        if isinstance(command, commands.ScaleLr):
            rates.scale(command.factor)
        elif isinstance(command, commands.ReleaseLr):
            rates.release()
        elif command.optimizer != whose.index:
            self._gate.refuse(request, f"no optimizer {command.optimizer} has made an update")
            return
        elif command.group is not None and command.group not in groups:
            self._gate.refuse(request, f"no param_group {command.group}; there are {len(groups)}")
            return
        else:
            chosen = groups if command.group is None else [command.group]
            rates.fix(whose.index, chosen, command.value)
        self._undo.append((LR, command.words, put_back))
        new = in_words(rates.of(whose.index, optimizer))
        self._gate.applied(request, old, new)
        step = roster.next_step()
        self._gate.event("lr", f"learning rate {old} → {new} from update {step} on", request)
