"""A look at one layer: exact figures, places, what it gave, and nothing that is disturbed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed, wait_for
from tests.train.test_gate import Training, applied
from tuimon.feed.codec import encode
from tuimon.model import commands
from tuimon.model.inspection import MAX_PLACES, PERCENTILES, Inspected, InspectReply
from tuimon.model.records import PAUSED
from tuimon.train import monitor as monitors
from tuimon.train.samples import elements
from tuimon.train.samples.elements import inspected


def test_figures_are_exact_and_places_are_named() -> None:
    values = torch.randn(3, 50, 7, generator=torch.Generator().manual_seed(0)) * 3 + 1000
    values[1, 2, 3], values[2, 49, 6], values[0, 0, 0] = math.nan, -math.inf, math.inf
    values[0, 0, 1], values[2, 0, 0] = 0.0, -5e4
    before = values.clone()
    found = inspected("gradient", "w", values, step=7)
    assert torch.equal(before.nan_to_num(), values.nan_to_num())
    finite = values[torch.isfinite(values)].double().numpy()
    assert (found.shape, found.dtype, found.numel) == ([3, 50, 7], "float32", 1050)
    assert (found.nan, found.posinf, found.neginf, found.zeros) == (1, 1, 1, 1)
    assert [place.index for place in found.bad] == [[0, 0, 0], [1, 2, 3], [2, 49, 6]]
    assert found.bad[0].value == math.inf and math.isnan(found.bad[1].value)
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(finite.mean(), rel=1e-12)
    assert found.std == pytest.approx(finite.std(), rel=1e-12)
    assert found.rms == pytest.approx(np.sqrt((finite**2).mean()), rel=1e-12)
    assert found.percentiles == pytest.approx(np.percentile(finite, PERCENTILES).tolist())
    assert found.outliers[0].index == [2, 0, 0] and found.outliers[0].value == -5e4
    sizes = [abs(place.value) for place in found.outliers]
    assert sizes == sorted(np.abs(finite))[: -MAX_PLACES - 1 : -1]
    assert found.histogram is not None and found.histogram.nan == 1


def test_parts_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.cat([torch.randn(500) + 1e6, torch.randn(523) - 1e6, torch.full((7,), math.nan)])
    whole = inspected("parameter", "w", values)
    monkeypatch.setattr(elements, "CHUNK", 64)
    parts = inspected("parameter", "w", values)
    assert parts.std == pytest.approx(whole.std, rel=1e-12)
    assert (parts.bad[0].index, parts.outliers, parts.nan) == ([1023], whole.outliers, 7)
    monkeypatch.setattr(elements, "MAX_ELEMENTS", 100)
    monkeypatch.setattr(elements, "SHARE", 50)
    share = inspected("parameter", "w", values)
    assert "evenly spread" in share.note and share.outliers == [] and share.numel == 1030


@pytest.mark.parametrize(
    ("tensor", "note"),
    [
        (torch.empty(0), "no elements"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.tensor([1 + 2j]), "complex"),
        (torch.tensor([True, False]), ""),
        (torch.tensor(3), ""),
        (torch.arange(12.0).reshape(3, 4).t(), ""),
        (torch.full((2, 2), math.nan), ""),
        (torch.ones(3).to(torch.float8_e4m3fn), ""),
    ],
)
def test_every_kind_of_tensor_can_be_looked_at(tensor: torch.Tensor, note: str) -> None:
    found = inspected("parameter", "w", tensor)
    assert note in found.note and found.shape == list(tensor.shape)
    assert len(encode(InspectReply("1", 0, "w", items=[found]))) < 2000


class Net(nn.Module):
    """Draws random numbers, counts its calls, and holds what inspection must not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3))
        self.last = nn.Linear(16, 1)
        self.calls = 0
        self.gave: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.first(x)
        self.gave = hidden.detach().clone()
        return self.last(hidden)


def trained(feed: Feed, looks: list[str]) -> tuple[list[torch.Tensor], list[InspectReply], Net]:
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = tuimon.watch(model, optimizer)
    seen = len(feed.of(InspectReply))
    for step in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).pow(2).mean().backward()
        if step == 3:
            monitors._wiring.observer.scenes.suspect()
        if step == 4:
            for layer in looks:
                assert feed.ask(commands.Inspect(layer)).state == "accepted"
        optimizer.step()
    monitor.close()
    left = [*model.state_dict().values(), torch.get_rng_state(), torch.tensor(model.calls)]
    return [each.clone() for each in left], feed.of(InspectReply)[seen:], model


def by_what(reply: InspectReply, what: str) -> list[Inspected]:
    return [item for item in reply.items if item.what == what]


def test_outputs_are_those_of_the_forward_and_nothing_is_disturbed(feed: Feed) -> None:
    free, _, _ = trained(feed, [])
    left, replies, model = trained(feed, ["first", "first.0.weight", "last"])
    assert all(map(torch.equal, free, left))
    first, weight, last = replies
    assert first.kind == "Sequential" and len(by_what(first, "parameter")) == 4
    (output,) = by_what(first, "output")
    assert output.source == "run again" and output.shape == [8, 16]
    assert model.gave is not None and output.zeros == int((model.gave == 0).sum()) > 0
    assert output.maximum == float(model.gave.max()), "dropout was drawn anew"
    assert [item.what for item in weight.items] == ["parameter", "gradient", "output"]
    assert (weight.kind, by_what(weight, "output")[0].name) == ("Linear", "first.0")
    assert "before the update" in " ".join(weight.notes)
    assert by_what(last, "output")[0].shape == [8, 1]
    assert all(len(encode(reply)) < 20_000 and reply.took_s < 10 for reply in replies)


@pytest.mark.usefixtures("every_step")
def test_while_paused_with_what_was_sampled(feed: Feed) -> None:
    training = Training(feed)

    def viewer() -> None:
        wait_for(lambda: training.steps_done > 2)
        monitors._wiring.observer.examiner.level = "light"
        applied(feed, commands.Pause())
        wait_for(lambda: training.header()[0] == PAUSED)
        done = applied(feed, commands.Inspect("0"))
        assert done.new == "5 tensors, all finite"
        (reply,) = feed.of(InspectReply)
        assert (reply.id, reply.layer, reply.kind) == (done.id, "0", "Linear")
        (output,) = by_what(reply, "output")
        assert output.source == f"sampled at step {training.steps_done - 1:,}"
        assert output.rms is not None and output.numel == 16
        answer = feed.ask(commands.Inspect("nope"))
        wait_for(lambda: len(feed.states(answer.id)) == 2)
        assert "no layer 'nope'" in feed.states(answer.id)[-1].reason

    training.with_viewer(viewer)
