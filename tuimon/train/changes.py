"""Carries out the commands that change updates: clipping and learning rates.

Belongs to the training thread, like the gate that it answers through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuimon.model import commands
from tuimon.model.records import CLIP_ON
from tuimon.train.rates import in_words

if TYPE_CHECKING:
    from tuimon.train.gate import Gate
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track

_CLIPS = commands.SetClip | commands.SetMaxNorm
_RATES = commands.ScaleLr | commands.SetLr | commands.ReleaseLr


class Changes:
    """What becomes of updates from the next one on."""

    def __init__(self, observer: Observer, gate: Gate) -> None:
        self._observer = observer
        self._gate = gate

    def takes(self, request: commands.Request, track: Track) -> bool:
        """Carry out a command that changes updates; False for any other."""
        command = request.command
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
            clipping.max_norm = bound
        clipping.mode = command.mode
        new = clipping.describe()
        self._gate.applied(request, old, new, step=step)
        self._gate.event("clip", f"clip {old} → {new} from update {step} on", request)

    def _set_max_norm(self, request: commands.Request, bound: float, step: int) -> None:
        clipping = self._observer.clipping
        old = "none" if clipping.max_norm is None else f"{clipping.max_norm:g}"
        clipping.max_norm = bound
        self._gate.applied(request, old, f"{bound:g}", step=step)
        self._gate.event("clip", f"max_norm {old} → {bound:g} from update {step} on", request)

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
        new = in_words(rates.of(whose.index, optimizer))
        self._gate.applied(request, old, new)
        step = roster.next_step()
        self._gate.event("lr", f"learning rate {old} → {new} from update {step} on", request)
