"""Trainings that learn nothing: a loss at the level of guessing, or one that swings in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from tuimon.diagnose.detectors.course import BLOCK, WINDOW, Course, CourseDetector
from tuimon.diagnose.detectors.robust import median
from tuimon.model.records import AnyRecord, Symptom
from tuimon.model.units import number

# A run is judged when it ends, after so many updates past its warm-up: shorter ones prove nothing.
MIN_UPDATES = 100
# A run that goes on is judged after so many: tasks that are learned all of a sudden may stay at
# chance for hundreds of updates first.
LIVE_UPDATES = 1000
# Not better than guessing by more than this. Of the labels' entropy an hour of noise takes less,
# and a model that has begun to learn takes more within a block.
MARGIN = 0.03
# The variance of targets is known from some batches only, within about 5 %.
MARGIN_SQUARES = 0.07
FALLEN, STEADY = 0.03, 0.85  # share of the first block; of all pairs of blocks
WORSE = 1.2  # above this many times chance the loss measures something else, such as other weights
# A loss that was thrown up so many times above where it began, and has not come down to that since:
# other weights are no explanation, and less than that margin is enough.
THROWN, WORSE_THROWN = 10.0, 1.05
# Slow: still within an eighth of guessing. On its own a remark, as a hard task looks the same.
SLOW = 0.125

# Two values in turn, around one level: the correlation of neighbours is negative beyond chance
# (three standard errors of 1 / sqrt(n) at 64 values).
TURNS = -0.375
AMPLITUDE = math.log(1.5)


class Progress(CourseDetector):
    """Plateau, slow progress and oscillation without progress, each at most once a run."""

    def __init__(self, course: Course, rank: int = 0) -> None:
        super().__init__(course, rank)
        self._said: set[tuple[str, str]] = set()

    def see(self, record: AnyRecord) -> Iterator[Symptom]:
        course = self.course
        if not course.fresh or course.updates % BLOCK:
            return
        if course.updates % (BLOCK * 5) == 0:
            yield from self._oscillation()
        if course.at_full_rate >= LIVE_UPDATES:
            yield from self._judge()
        elif course.at_full_rate >= MIN_UPDATES:
            yield from self._judge(at_most="info")

    def close(self) -> Iterator[Symptom]:
        if self.course.at_full_rate >= MIN_UPDATES:
            yield from self._judge()

    def _judge(self, at_most: str = "warning") -> Iterator[Symptom]:
        course = self.course
        chance, level, start = course.chance.level, course.level, course.start
        if level is None or start is None or course.is_signed:
            return
        figures = {"level": level, "start": start, "updates": float(course.updates)}
        if chance is not None and chance > 0:
            figures["chance"] = chance
            gain = 1 - level / chance
            margin = MARGIN_SQUARES if course.chance.name.startswith("the var") else MARGIN
            if is_on_its_way(course):
                return  # an initialisation that is worse than guessing takes its time to get there
            if level <= WORSE * chance and gain <= margin:
                severity = "info" if course.others else at_most
                detail = (
                    f"the loss is {number(level)} after {course.updates:,} updates, no better "
                    f"than guessing ({course.chance.name} = {number(chance)})"
                )
                yield from self._say("plateau", severity, detail, figures)
            elif level > _worse(course) * max(chance, start):
                detail = (
                    f"the loss is {number(level)} after {course.updates:,} updates: worse than "
                    f"guessing ({course.chance.name} = {number(chance)}), and than the untrained "
                    f"model ({number(start)})"
                )
                yield from self._say(
                    "plateau", "info" if course.others else at_most, detail, figures
                )
            elif level <= chance and gain <= SLOW and level > (1 - SLOW) * start:
                detail = (
                    f"the loss is {number(level)} after {course.updates:,} updates, only "
                    f"{100 * gain:.0f} % better than guessing "
                    f"({course.chance.name} = {number(chance)})"
                )
                yield from self._say("slow-progress", "info", detail, figures)
        elif is_flat(course):
            detail = (
                f"the loss is {number(level)} after {course.updates:,} updates and began at "
                f"{number(start)}"
            )
            yield from self._say("plateau", "info", detail, figures)

    def _oscillation(self) -> Iterator[Symptom]:
        course = self.course
        losses = [point.loss for point in course.points]
        if len(losses) < WINDOW or min(losses) <= 0:
            return
        logs = [math.log(loss) for loss in losses]
        middle = median(logs)
        off = [each - middle for each in logs]
        power = sum(each * each for each in off)
        if power == 0 or median([abs(each) for each in off]) < AMPLITUDE:
            return
        turns = sum(a * b for a, b in pairwise(off)) / power
        if turns > TURNS or course.has_improved:
            return
        detail = (
            f"the loss swings from update to update around {number(math.exp(middle))} and gets no "
            f"lower"
        )
        yield from self._say("oscillation", "info", detail, {"correlation": turns})

    def _say(
        self, kind: str, severity: str, detail: str, figures: dict[str, float]
    ) -> Iterator[Symptom]:
        if (kind, severity) in self._said:
            return
        self._said.add((kind, severity))
        yield Symptom(kind, self.course.first_step, self.rank, severity, detail, figures)


def _worse(course: Course) -> float:
    """How many times worse than guessing and than at the start a loss is to be worse at all."""
    start = course.start
    was_thrown = start is not None and course.highest >= THROWN * start
    return WORSE_THROWN if was_thrown else WORSE


def is_flat(course: Course) -> bool:
    """Whether the newest half of the run stands where the first half stood, and that is the start.

    Blocks are compared by their medians: those of the newer half are no lower than those of the
    older one, but for what batches differ by.
    """
    blocks = course.blocks
    if len(blocks) < 6 or course.has_improved:
        return False
    half = len(blocks) // 2
    return median(blocks[half:]) > 0.98 * median(blocks[:half])


def is_on_its_way(course: Course) -> bool:
    """Whether the loss falls steadily: most of its blocks lie below most of the earlier ones."""
    blocks = course.blocks
    if len(blocks) < 4 or blocks[-1] > (1 - FALLEN) * blocks[0]:
        return False
    pairs = [(a, b) for at, a in enumerate(blocks) for b in blocks[at + 1 :]]
    return sum(b < a for a, b in pairs) >= STEADY * len(pairs)


def is_stuck(course: Course) -> bool:
    """Whether there is no sign of learning after enough updates at the full learning rate."""
    if course.has_improved or course.at_full_rate < MIN_UPDATES:
        return False
    chance, level = course.chance.level, course.level
    learned = level is not None and chance is not None and level < (1 - SLOW) * chance
    return not learned
