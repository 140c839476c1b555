"""Ranks of one training find out whether they hold the same weights and see the same data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tuimon.model.loop import RankState
from tuimon.train import ranks

Look = Callable[..., list[RankState]]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Look:
    """(rank, updates so far, weights, batch) -> what that rank finds."""
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path))
    alone = [ranks.Ranks() for _ in range(4)]

    def of(
        rank: int, number: int, weights: torch.Tensor, batch: torch.Tensor, size: int = 2
    ) -> list[RankState]:
        monkeypatch.setattr(ranks, "place_of", lambda: (rank, size, "a job"))
        return alone[rank].look(number, [weights], [batch], wrapped=size > 2 or number < 100)

    return of


def newest_folder() -> Path:
    (folder,) = Path(os.environ["TUIMON_DIR"]).glob("tuimon-ranks-*")
    return folder


WEIGHTS = torch.arange(6.0)


def test_replicas_that_agree_and_batches_that_differ(look: Look) -> None:
    assert look(0, 1, WEIGHTS, torch.zeros(2)) == []
    (found,) = look(1, 1, WEIGHTS.clone(), torch.ones(2))
    assert (found.step, found.rank, found.peers) == (0, 1, 1)
    assert (found.differing, found.same_batch) == ([], [])


def test_replicas_that_drift_apart_on_the_same_batch(look: Look) -> None:
    look(0, 1, WEIGHTS, torch.zeros(2))
    (found,) = look(1, 1, WEIGHTS * 1.001, torch.zeros(2))
    assert (found.differing, found.same_batch) == ([0], [0])
    (late,) = look(0, 3, WEIGHTS, torch.zeros(2))  # it had been the first and looks again
    assert (late.step, late.differing) == (0, [1])


def test_one_of_four_differs_late_in_a_long_training(look: Look) -> None:
    """Each is told of the others whose weights are not its own; few files are kept."""
    moved = WEIGHTS.clone()
    for update in range(0, 20 * 1024 + 1, 1024):
        found = [
            look(rank, update, moved if rank == 2 else WEIGHTS, torch.full((2,), rank), size=4)
            for rank in range(4)
        ]
        if update == 19 * 1024:
            moved[4] *= 1.0001
    assert ranks.is_compared(update) and not ranks.is_compared(update - 1)
    (newest,) = [state for state in found[3] if state.step == update - 1]
    assert (newest.peers, newest.differing, newest.same_batch) == (3, [2], [])
    late = [look(rank, update + 8, WEIGHTS, torch.zeros(2), size=4) for rank in range(3)]
    assert [states[-1].differing for states in late] == [[2], [2], [0, 1, 3]]
    folder = newest_folder()
    assert len(list(folder.iterdir())) == 4 * ranks.KEPT_FILES


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * (1 + 2**-17),
        lambda x: x.flip(0),
        lambda x: torch.where(x > 4, float("nan"), x),
        lambda x: x[:5],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int64])
def test_checksums_tell_tensors_apart(change: Any, dtype: torch.dtype) -> None:
    values = torch.arange(1, 7, dtype=dtype)
    same = [ranks.checksum([each]) for each in (values, values.clone())]
    assert same[0] == same[1] != ""
    if dtype == torch.float32:
        assert ranks.checksum([values * (1 + 2**-23)]) == same[0], "another order of a sum"
    changed = change(values.double()).to(dtype)
    is_same = torch.equal(changed, values)
    assert (ranks.checksum([changed]) == same[0]) is is_same


def test_parts_of_one_model_are_no_replicas(look: Look) -> None:
    look(0, 128, WEIGHTS, torch.zeros(2))
    (found,) = look(1, 128, WEIGHTS + 1, torch.zeros(2))
    assert (found.peers, found.differing, found.same_batch) == (1, [], [])


def test_replicas_by_hand_are_known_by_their_gradients(look: Look) -> None:
    mine, other = (nn.Parameter(WEIGHTS + each) for each in (0, 1))
    mine.grad, other.grad = torch.ones(6), torch.ones(6)
    look(0, 128, mine, torch.zeros(2))
    (found,) = look(1, 128, other, torch.ones(2))
    assert (found.differing, found.same_gradient) == ([0], [0])


def test_what_is_left_is_taken_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path))
    monkeypatch.setattr(ranks, "place_of", lambda: (0, 2, "a job"))
    alone = ranks.Ranks()
    alone.look(1, [WEIGHTS], [], wrapped=True)
    assert len(list(tmp_path.rglob("1.0"))) == 1
    alone.close()
    assert list(tmp_path.iterdir()) == []


def test_outside_of_any_such_training_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path))
    assert ranks.Ranks().look(1, [WEIGHTS], [], wrapped=True) == []
    assert list(tmp_path.iterdir()) == []
