"""What a sample says of silent units, outputs at their ends, and updates without effect."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tests.train.sampled import activations, loop, net, parameters, sgd
from tuimon.train.samples.spectrum import silent_units


def test_a_dead_layer_and_a_saturated_one_are_told_apart(feed: Feed, every_step: None) -> None:
    model = nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4), nn.Sigmoid(), nn.Linear(4, 1)
    )
    with torch.no_grad():
        model[0].bias[:4] = -100.0
        model[2].bias.fill_(200.0)
    optimizer = sgd(model, lr=0.0)
    tuimon.watch(model, optimizer)
    loop(model, optimizer)
    seen = {item.module: item for item in activations(feed)}
    assert 0.25 <= seen["1"].silent_frac < 1.0
    assert seen["0"].silent_frac == 0.0 and seen["0"].one_frac is None
    assert seen["3"].one_frac == 1.0
    assert [seen[str(i)].kind for i in range(4)] == ["Linear", "ReLU", "Linear", "Sigmoid"]


def test_units_lie_where_the_shape_says() -> None:
    alive = torch.ones(16, 3)
    alive[:, 1] = 0.0
    assert silent_units(alive, True).tolist() == [False, True, False]
    image = torch.ones(2, 3, 4, 4)
    image[:, 2] = 0.0
    assert silent_units(image, True).tolist() == [False, False, True]
    assert silent_units(alive, False).tolist() == [False] * 3
    assert silent_units(torch.zeros(4, 3), True) is None, "four samples prove nothing"
    assert silent_units(torch.zeros(40), True) is None
    assert silent_units(torch.zeros(8, 1 << 20), True) is None, "too large to look at eight"
    assert silent_units(torch.zeros(4096, 64), True).all(), "a large batch is looked at in part"


@pytest.mark.parametrize(("lr", "changes"), [(1e-6, False), (1.0, True)])
def test_bfloat16_weights_that_swallow_their_updates(
    feed: Feed, every_step: None, lr: float, changes: bool
) -> None:
    model = net().to(torch.bfloat16)
    optimizer = sgd(model, lr=lr)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, forward=lambda x: model(x.bfloat16()))
    found = [item for _, item in parameters(feed, "0.weight")]
    assert found and all((item.changed_frac > 0.5) is changes for item in found)
    assert changes or all(item.changed_frac < 0.2 for item in found)


def test_an_update_that_was_left_out_has_no_share(feed: Feed, every_step: None) -> None:
    model = net()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = sgd(model)
    tuimon.watch(model, optimizer, scaler)
    for step in range(4):
        loss = model(torch.randn(8, 6)).pow(2).mean() * (float("inf") if step == 2 else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    shares = dict((step, item.changed_frac) for step, item in parameters(feed, "0.weight"))
    assert shares[2] is None and shares[3] > 0.5
