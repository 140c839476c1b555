"""The end of a run of several processes in one sentence: whose it was, and who went with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuimon.feed.registry import ExitInfo
from tuimon.model.text import plain

MAX_NAMED = 16
_BAD_ENDS = ("exception", "killed")


@dataclass(frozen=True)
class End:
    """How one process of a run ended."""

    rank: int
    pid: int
    how: ExitInfo

    @property
    def is_bad(self) -> bool:
        """Whether it failed or was killed."""
        return self.how.kind in _BAD_ENDS or self.how.code not in (None, 0)

    @property
    def in_words(self) -> str:
        """With its name."""
        return f"rank {self.rank} (pid {self.pid}) {words(self.how)}"


def words(how: ExitInfo) -> str:
    """How a process ended, to go behind its name."""
    code = "" if how.code is None else f" with status {how.code}"
    match how.kind:
        case "killed":
            return how.detail
        case "ok":
            return f"ended normally{code}"
        case "stopped":
            return f"was stopped: {how.detail}" if how.detail else "was stopped"
        case _:
            return f"ended by an exception{code}: {how.detail}"


def together(ranks: Sequence[End], culprit: End | None, launcher: End | None) -> ExitInfo:
    """How the run ended: as its launcher did, else as the rank that ended the others.

    Args:
        ranks: all of them.
        culprit: the rank whose bad end was the first, and no consequence of another one's.
        launcher: the process that spawned them, where there is one.
    """
    named = [] if culprit is None else [culprit.in_words]
    others = [each.rank for each in ranks if each is not culprit and each.how.kind == "killed"]
    if others:
        named.append(f"then {_ranks(others)} without a last word")
    if launcher is not None:
        how = launcher.how
        if how.kind == "ok" and culprit is None:
            return how
        if how.kind == "killed":
            named.append(f"the process that spawned them (pid {launcher.pid}) was killed")
        elif how.detail:
            named.append(how.detail)
        return ExitInfo(how.kind, how.code, plain("; ".join(named)))
    if culprit is not None:
        return ExitInfo(culprit.how.kind, culprit.how.code, plain("; ".join(named)))
    ends = [each.how for each in ranks]
    return next((each for each in ends if each.kind == "stopped"), ends[0])


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:MAX_NAMED])) + (" …" if len(ranks) > MAX_NAMED else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {listed}"
