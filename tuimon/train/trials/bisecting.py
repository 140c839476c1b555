"""Finds the samples of a batch without which a step is sound. Pure: it asks, and runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_GUILTY = 4  # more of them are not a few bad samples but a bad batch
MAX_RUNS = 32  # two a halving of a million samples

# Whether the step is sound without these samples; None when it cannot be asked any more.
Heals = Callable[[Sequence[int]], bool | None]


class _Undecided(Exception):
    """There is no small set of guilty samples, or it was not found in time."""


def guilty_samples(count: int, heals: Heals) -> list[int]:
    """The smallest set found without which the step is sound; [] where there is no small one.

    Args:
        count: samples of the batch.
        heals: asked at most `MAX_RUNS` times.
    """
    if count < 2:
        return []
    search = _Search(heals)
    try:
        found = sorted(search.narrow(list(range(count)), []))
        return found if len(found) <= MAX_GUILTY and search.heals(found) else []
    except _Undecided:
        return []


class _Search:
    def __init__(self, heals: Heals) -> None:
        self._heals = heals
        self._runs = 0
        self._found = 0

    def heals(self, left_out: list[int]) -> bool:
        self._runs += 1
        answer = self._heals(left_out) if self._runs <= MAX_RUNS else None
        if answer is None:
            raise _Undecided
        return answer

    def narrow(self, suspects: list[int], others: list[int]) -> list[int]:
        """The guilty ones among `suspects`, while `others` are left out as well."""
        if len(suspects) == 1:
            self._found += 1
            if self._found > MAX_GUILTY:
                raise _Undecided
            return suspects
        middle = len(suspects) // 2
        first, second = suspects[:middle], suspects[middle:]
        if self.heals([*others, *first]):
            return self.narrow(first, others)
        if self.heals([*others, *second]):
            return self.narrow(second, others)
        found = self.narrow(first, [*others, *second])
        return found + self.narrow(second, [*others, *found])
