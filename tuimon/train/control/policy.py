"""What is done about an update whose gradients are not finite, and how far an autopsy may go.

Plain data; imports no torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

CONTINUE = "continue"
HOLD = "hold"
SKIP = "skip"
ROLLBACK = "rollback"
RAISE = "raise"
POLICIES = (CONTINUE, HOLD, SKIP, ROLLBACK, RAISE)

OFF = "off"
LIGHT = "light"
FULL = "full"
AUTOPSIES = (OFF, LIGHT, FULL)

HOLD_LIMIT_S = 300.0
AUTOPSY_LIMIT_S = 30.0
SNAPSHOT_EVERY = 100  # updates that a roll back may cost at most, and a copy is spread over
TRIALS_LIMIT_S = 20.0
AUTOPSY_VARIABLE = "TUIMON_AUTOPSY"


class NonFinite(FloatingPointError):
    """Raised before an update whose gradients are not finite, where the policy is "raise".

    Attributes:
        step: index of the update that was about to happen.
    """

    def __init__(self, text: str, step: int = 0) -> None:
        super().__init__(text)
        self.step = step


@dataclass(frozen=True, slots=True)
class Policy:
    """What tuimon may do by itself when a step is not healthy.

    Attributes:
        on_non_finite: about an update whose gradients are not finite: "continue" changes
            nothing; "hold" waits before it for somebody to decide; "skip" leaves it out;
            "raise" raises `tuimon.NonFinite`; "rollback" leaves it out and goes back to the last
            healthy state. An update that a GradScaler leaves out is its
            own business.
        hold_limit_s: after that many seconds a hold ends by itself and the training goes on.
        autopsy: "off"; "light" reads the graph of the loss and runs none of the script's code;
            "full" also runs the model of that step once more and puts everything back.
            None is what `TUIMON_AUTOPSY` says, else "full".
        autopsy_limit_s: how long one autopsy may take.
        trials: after a "full" autopsy the likely causes are tested, on copies: the step is run
            again with one thing changed, a few times.
        trials_limit_s: how long the trials of one step may take.
        snapshot_every: updates from one copy of the state to the next, to roll back to; 0 takes
            none. None is 100 where `on_non_finite` is "rollback", else none.
    """

    on_non_finite: str = CONTINUE
    hold_limit_s: float = HOLD_LIMIT_S
    autopsy: str | None = None
    autopsy_limit_s: float = AUTOPSY_LIMIT_S
    trials: bool = True
    trials_limit_s: float = TRIALS_LIMIT_S
    snapshot_every: int | None = None

    @property
    def snapshots(self) -> int:
        """Updates from one snapshot to the next; 0 takes none."""
        if self.snapshot_every is not None:
            return self.snapshot_every
        return SNAPSHOT_EVERY if self.on_non_finite == ROLLBACK else 0

    def problem(self) -> str:
        """Why this cannot be had; "" when it can."""
        if self.on_non_finite not in POLICIES:
            return f"policy {self.on_non_finite!r} is unknown; use {_listed(POLICIES)}"
        every = self.snapshot_every
        if every is not None and not (isinstance(every, int) and every >= 0):
            return f"snapshot_every is {every!r}; give a number of updates, 0 for none"
        if self.on_non_finite == ROLLBACK and every == 0:
            return "policy 'rollback' needs snapshots; give snapshot_every a number above 0"
        if self.autopsy is not None and self.autopsy not in AUTOPSIES:
            return f"autopsy {self.autopsy!r} is unknown; use {_listed(AUTOPSIES)}"
        for name, value in (
            ("hold_limit_s", self.hold_limit_s),
            ("autopsy_limit_s", self.autopsy_limit_s),
            ("trials_limit_s", self.trials_limit_s),
        ):
            if not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
                return f"{name} is {value!r}; give seconds above 0"
        return ""

    def words(self) -> list[str]:
        """What differs from the usual, as `name=value` for a command line."""
        usual = Policy()
        return [
            f"{name}={value}"
            for name in (
                "on_non_finite",
                "hold_limit_s",
                "autopsy",
                "autopsy_limit_s",
                "trials",
                "trials_limit_s",
                "snapshot_every",
            )
            if (value := getattr(self, name)) != getattr(usual, name)
        ]


def from_words(words: Mapping[str, str]) -> Policy:
    """The policy that `Policy.words` wrote down."""
    usual = Policy()
    return Policy(
        words.get("on_non_finite", usual.on_non_finite),
        float(words.get("hold_limit_s", usual.hold_limit_s)),
        words.get("autopsy"),
        float(words.get("autopsy_limit_s", usual.autopsy_limit_s)),
        words.get("trials", "True") == "True",
        float(words.get("trials_limit_s", usual.trials_limit_s)),
        int(words["snapshot_every"]) if "snapshot_every" in words else None,
    )


def autopsy_level(policy: Policy, environ: Mapping[str, str] = os.environ) -> str:
    """How far an autopsy goes: as the policy says, else the environment, else all the way."""
    wanted = policy.autopsy or environ.get(AUTOPSY_VARIABLE, "")
    return wanted if wanted in AUTOPSIES else FULL


def policy_of(given: str | Policy | None, snapshot_every: int = 0) -> Policy:
    """A policy as `watch` takes it: a word, an object, or nothing.

    Raises:
        ValueError: it cannot be had.
    """
    policy = given if isinstance(given, Policy) else Policy(given or CONTINUE)
    if snapshot_every:
        policy = replace(policy, snapshot_every=snapshot_every)
    if problem := policy.problem():
        raise ValueError(f"tuimon.watch: {problem}")
    return policy


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + f" or {words[-1]}"
