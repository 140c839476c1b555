"""Ranks of one training find out whether they hold the same weights and see the same data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tuimon.model.loop import RankState
from tuimon.train import ranks

Look = Callable[[int, int, torch.Tensor, torch.Tensor], list[RankState]]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Look:
    """(rank, updates so far, weights, batch) -> what that rank finds."""
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path))
    both = ranks.Ranks(), ranks.Ranks()

    def of(rank: int, number: int, weights: torch.Tensor, batch: torch.Tensor) -> list[RankState]:
        monkeypatch.setattr(ranks, "place_of", lambda: (rank, 2, "a job"))
        return both[rank].look(number, [weights], [batch], wrapped=number < 100)

    return of


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
