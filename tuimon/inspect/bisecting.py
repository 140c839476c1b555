"""The first bad one of checkpoints in their order, by halves: few of many are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tuimon.inspect.places import SUFFIXES, numbered


@dataclass
class Bisected:
    """What was found.

    Attributes:
        first_bad, last_good: places in the order; None where there is none.
        unreadable: why those could not be judged that were passed over.
        read: how many were read.
    """

    first_bad: int | None = None
    last_good: int | None = None
    unreadable: dict[int, str] = field(default_factory=dict)
    read: int = 0


def first_bad(count: int, judge: Callable[[int], bool | str]) -> Bisected:
    """Find the first bad of `count` things of which, once one is bad, all later ones are.

    The last is looked at first: where it is good, nothing is searched.

    Args:
        count: how many there are.
        judge: whether one is good; a text where it cannot be told.
    """
    found = Bisected()
    known: dict[int, bool] = {}
    left = list(range(count))

    def is_good(place: int) -> bool | None:
        if place not in known:
            found.read += 1
            judged = judge(place)
            if isinstance(judged, str):
                found.unreadable[place] = judged
                left.remove(place)
                return None
            known[place] = judged
        return known[place]

    while left:
        newest = is_good(left[-1])
        if newest is None:
            continue  # cut short by whatever ended the training, as a rule
        if newest:
            found.last_good = left[-1]
            return found
        break
    low, high = -1, len(left) - 1  # places in `left`: low is good, high is bad
    while left and high - low > 1:
        middle = (low + high) // 2
        judged = is_good(left[middle])
        if judged is None:
            high -= 1
        elif judged:
            low = middle
        else:
            high = middle
    if left:
        found.first_bad = left[high]
        found.last_good = left[low] if low >= 0 else None
    return found


def in_order(paths: list[str]) -> list[Path]:
    """The checkpoints in a folder, files or folders, by the numbers in their names.

    Several paths are taken in the order in which they were given.
    """
    if len(paths) > 1 or not Path(paths[0]).is_dir():
        return [Path(path) for path in paths]
    entries = [each for each in Path(paths[0]).iterdir() if not each.name.startswith(".")]
    files = [each for each in entries if each.suffix in SUFFIXES and not each.is_dir()]
    folders = [each for each in entries if each.is_dir() and not each.is_symlink()]
    # A folder of folders is one of checkpoints; beside files, folders are something else.
    return sorted(files or folders, key=numbered)
