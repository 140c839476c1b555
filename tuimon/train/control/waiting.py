"""Commands that wait for a gate, and how many may."""

from __future__ import annotations

from collections import deque

from tuimon.model.commands import Request

# In all, and of one asker. A person sends a few, a script dozens; 256 are some 100 KiB, and are
# carried out in less than a tenth of a second.
MAX_WAITING, MAX_OF_ONE = 256, 64


class Waiting(deque[Request]):
    """Appended to by the control thread, emptied by the training thread."""

    def crowd(self, by: str, others: int) -> str:
        """Why nobody, or not this asker, may queue more; "" while it may. Called by any thread.

        Args:
            by: who asks.
            others: commands that wait for other ranks.
        """
        waiting = [each.by for each in self.copy()]
        if len(waiting) + others >= MAX_WAITING:
            return f"{MAX_WAITING} commands wait for the next update already"
        if len(waiting) >= MAX_OF_ONE and waiting.count(by) >= MAX_OF_ONE:
            return f"{MAX_OF_ONE} commands of yours wait for the next update already"
        return ""
