"""A checkpoint asked for from outside: what loads from it goes on exactly, without unpickling."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model import commands
from tuimon.train.control import checkpoint, dump

UPDATES, ASKED_AT = 9, 4


class Training:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)

    def update(self) -> None:
        x = torch.randn(8, 6) + float(np.random.rand()) + random.random()
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(x).pow(2).mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def weights(self) -> torch.Tensor:
        return torch.cat([param.detach().flatten() for param in self.model.parameters()])


def gone_on(file: dict[str, Any]) -> torch.Tensor:
    """A new process would do this: load everything, then train from that update on."""
    other = Training(seed=1)
    (weights,) = file["models"].values()
    other.model.load_state_dict(weights)
    other.optimizer.load_state_dict(file["optimizers"][0])
    other.scaler.load_state_dict(file["scalers"][0])
    torch.set_rng_state(file["random"]["torch"])
    random.setstate(file["random"]["python"])
    kind, keys, *rest = file["random"]["numpy"]
    np.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
    for _ in range(UPDATES - file["step"]):
        other.update()
    return other.weights()


def test_what_is_loaded_goes_on_exactly(feed: Feed, tmp_path: Path) -> None:
    training = Training(seed=0)
    tuimon.watch(training.model, training.optimizer)
    for _ in range(ASKED_AT):
        training.update()
    # The gate stands after forward and backward: what it keeps is the state of this moment.
    asked = feed.ask(commands.SaveCheckpoint(str(tmp_path / "kept")))
    training.update()
    state = feed.states(asked.id)[-1]
    assert state.state == "applied" and state.new is not None
    place = Path(state.new)
    assert place.name == f"checkpoint-{ASKED_AT:06d}.pt" and place.stat().st_mode & 0o077 == 0
    file = torch.load(place, weights_only=True)
    assert (file["schema"], file["step"]) == (checkpoint.SCHEMA, ASKED_AT)
    assert len(os.listdir(place.parent)) == 1
    # Loading hands over the very tensors of the file, so that each needs a file of its own.
    again = torch.load(place, weights_only=True)
    assert torch.equal(gone_on(file), gone_on(again))


def test_the_state_is_the_trainings_own(tmp_path: Path) -> None:
    training = Training(seed=0)
    for _ in range(ASKED_AT):
        training.update()
    outcome = checkpoint.write_checkpoint(
        str(tmp_path),
        [("", training.model)],
        [training.optimizer],
        [training.scaler],
        step=ASKED_AT,
    )
    assert outcome.folder is not None
    for _ in range(UPDATES - ASKED_AT):
        training.update()
    assert torch.equal(gone_on(torch.load(outcome.folder, weights_only=True)), training.weights())


class Odd(nn.Module):
    """Keeps something beside its tensors that only unpickling restores."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def get_extra_state(self) -> Any:
        return {"when": Path("/")}


@pytest.mark.parametrize(
    ("model", "space", "words"),
    [(Odd(), 0, "no checkpoint"), (nn.Linear(2, 2), 1 << 62, "free")],
)
def test_nothing_is_left_where_none_can_be(
    model: nn.Module, space: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MARGIN_BYTES", space)
    folder = tmp_path / "new" / "deep"
    outcome = checkpoint.write_checkpoint(str(folder), [("", model)], [], [], step=0)
    assert outcome.folder is None and words in outcome.reason
    assert os.listdir(tmp_path) == []


def test_a_dump_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dump, "_write", fail)
    kept = tmp_path / "kept"
    kept.mkdir()
    for folder in (tmp_path / "new" / "deep", kept):
        outcome = dump.write_dump(str(folder), [("w", torch.ones(2))], step=0)
        assert "No space left" in outcome.reason
    assert os.listdir(tmp_path) == ["kept"] and os.listdir(kept) == []


def test_a_second_one_replaces_none(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for _ in range(2):
        checkpoint.write_checkpoint(str(tmp_path), [("", model)], [], [], step=7)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-000007-1.pt", "checkpoint-000007.pt"]
