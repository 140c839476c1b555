"""Carries out the commands that take something from the training and change nothing of it.

Dumps, checkpoints and looks at a layer. Belongs to the training thread, like the gate that it
answers through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuimon.model import commands

if TYPE_CHECKING:
    from tuimon.train.control.gate import Gate
    from tuimon.train.observer import Observer
    from tuimon.train.track import Track


class Takings:
    """What is handed out at the gate."""

    def __init__(self, observer: Observer, gate: Gate) -> None:
        self._observer = observer
        self._gate = gate

    def takes(self, request: commands.Request, track: Track) -> bool:
        """Carry out a command that only takes; False for any other."""
        command = request.command
        if isinstance(command, commands.Dump):
            self._dump(request, command, track)
        elif isinstance(command, commands.SaveCheckpoint):
            self._save_checkpoint(request, command.directory)
        elif isinstance(command, commands.Inspect):
            self._inspect(request, command.layer, track)
        else:
            return False
        return True

    def _dump(self, request: commands.Request, command: commands.Dump, track: Track) -> None:
        outcome = self._observer.dump(command.directory, command.layers, track)
        if outcome.reason:
            self._gate.refuse(request, outcome.reason)
            text = f"dump: {outcome.reason}"
            self._gate.event("dump-failed", text, request, severity="warning")
            return
        count = f"{outcome.layers:,} parameter{'s' * (outcome.layers != 1)}"
        self._gate.applied(request, None, str(outcome.folder), reason=count)
        self._gate.event("dump", f"{command.words}: {count} to {outcome.folder}", request)

    def _save_checkpoint(self, request: commands.Request, directory: str) -> None:
        outcome = self._observer.save_checkpoint(directory)
        if outcome.reason:
            self._gate.refuse(request, outcome.reason)
            self._gate.event("checkpoint-failed", outcome.reason, request, severity="warning")
            return
        self._gate.applied(request, None, str(outcome.folder))
        self._gate.event("checkpoint", f"checkpoint written: {outcome.folder}", request)

    def _inspect(self, request: commands.Request, layer: str, track: Track) -> None:
        from tuimon.train.control.inspecting import inspect_layer

        reply = inspect_layer(self._observer, layer, request.id, track)
        if isinstance(reply, str):
            self._gate.refuse(request, reply)
            return
        self._observer.session.publish(reply)
        bad = sum((each.nan or 0) + (each.posinf or 0) + (each.neginf or 0) for each in reply.items)
        words = f"{bad:,} not finite" if bad else "all finite"
        self._gate.applied(request, None, f"{len(reply.items)} tensors, {words}")
