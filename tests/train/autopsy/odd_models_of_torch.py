"""More of what a forward may change: schedules, random streams, data, what torch itself keeps."""

from __future__ import annotations

import functools
import random
import types
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.train.autopsy.odd_models import WIDTH, Case, Look, Uses, case


@case
def averaged_weights() -> Case:
    model = Uses(lambda m, x: m.averaged.update_parameters(m.layer))
    model.averaged = torch.optim.swa_utils.AveragedModel(model.layer)
    return model, lambda: model.state_dict()


@case
def a_schedule_that_the_forward_steps() -> Case:
    def odd(model: Any, x: torch.Tensor) -> None:
        model.schedule.step()

    model = Uses(odd)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    return model, lambda: (optimizer.param_groups[0]["lr"], model.schedule.last_epoch)


@case
def streams_of_its_own() -> Case:
    def odd(model: Any, x: torch.Tensor) -> torch.Tensor:
        drawn = model.bits.random_raw() % 7 + model.python.random() + model.old.rand()
        return x * (drawn + float(torch.rand(1, generator=model.streams["torch"][0])))

    model = Uses(odd)
    model.bits, model.python, model.old = (
        np.random.PCG64(1),
        random.Random(2),
        np.random.RandomState(3),
    )
    model.streams = {"torch": (torch.Generator().manual_seed(1),)}
    return model, lambda: (
        repr(model.bits.state),
        repr(model.python.getstate()),
        model.old.get_state()[1],
        model.streams["torch"][0].get_state(),
    )


@case
def a_dataset_that_counts() -> Case:
    class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
        reads = 0

        def __getitem__(self, index: int) -> int:
            self.reads += 1
            return index

    model = Uses(lambda m, x: m.data[0])
    model.data = Data()
    return model, lambda: model.data.reads


@case
def a_cell_that_is_not_filled_yet() -> Case:
    def odd(model: Any, x: torch.Tensor) -> None:
        nonlocal late
        if model.calls:
            late = 1
        model.calls += 1

    model = Uses(odd)
    model.calls = 0
    if False:
        late = 0
    (cell,) = odd.__closure__ or ()
    is_empty: Look = lambda: cell == types.CellType()  # noqa: E731
    return model, lambda: (is_empty(), model.calls)


@case
def what_torch_itself_keeps() -> Case:
    """Norms by hooks and by parametrizations, observers, a cache of keys and values."""

    def odd(model: Any, x: torch.Tensor) -> torch.Tensor:
        keys = torch.cat([model.past[0][0], x.detach()])
        model.past = ((keys[-8:], model.past[0][1]), *model.past[1:])
        model.place = (model.place + 1) % 8
        model.store.index_copy_(0, torch.tensor([model.place]), x.detach()[:1])
        model.observer(x)
        h = model.old(x) + model.norm(x) + model.weight(x) + model.fake(x)
        return h + model.store.sum() + keys.sum() + model.cached()

    class Observed(Uses):
        @functools.cached_property
        def table(self) -> torch.Tensor:
            return torch.rand(1)

        @functools.lru_cache  # noqa: B019
        def cached(self) -> torch.Tensor:
            return self.table

    model = Observed(odd)
    model.old = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))
    model.norm = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
    model.weight = nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))
    model.observer = torch.ao.quantization.HistogramObserver()
    model.fake = torch.ao.quantization.FakeQuantize()
    model.past = ((torch.zeros(1, WIDTH), 1), None)
    model.place, model.store = 0, torch.zeros(8, WIDTH)
    return model, lambda: (
        model.state_dict(),
        (model.past, model.place, model.store),
        id(model.past[0][0]),
        dict(vars(model)),
        model.old.weight,
    )
