"""The same numbers bit for bit with and without tuimon, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.utils.clip_grad as torch_clip
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tests.train.twins import Diary, Loop, differences, run, twins
from tuimon.feed.ring import RingReader
from tuimon.model.commands import Pause, RenewHold
from tuimon.model.records import RUNNING, UNWATCHED, Step
from tuimon.train import monitor as monitors


def net(dropout: float = 0.1) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1)
    )


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(7)
    return [
        (torch.randn(8, 6, generator=made) * 3, torch.randn(8, 1, generator=made))
        for _ in range(count)
    ]


def plain(watch: Diary) -> list[Any]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch(model, optimizer)
    for step, (x, y) in enumerate(batches(25)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step % 7 == 0:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
    return [model, optimizer]


def scaled(watch: Diary) -> list[Any]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
    watch(model, optimizer, scaler)
    for step, (x, y) in enumerate(batches(25)):
        x = x * (1e30 if step == 5 else 1)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [model, optimizer, scaler]


def accumulated(watch: Diary) -> list[Any]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    watch(model, optimizer, scheduler=scheduler)
    for step, (x, y) in enumerate(batches(24)):
        (nn.functional.mse_loss(model(x), y) / 3).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return [model, optimizer, scheduler]


def closures(watch: Diary) -> list[Any]:
    model = net(0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    watch(model, optimizer)
    for x, y in batches(5):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return [model, optimizer]


def adversarial(watch: Diary) -> list[Any]:
    maker, judge = nn.Linear(4, 6), net()
    first = torch.optim.Adam(judge.parameters(), lr=0.01)
    second = torch.optim.Adam(maker.parameters(), lr=0.01)
    watch([maker, judge], [second, first])
    for x, _ in batches(12):
        fake = maker(torch.randn(8, 4))
        first.zero_grad()
        (judge(x).mean() - judge(fake.detach()).mean()).backward()
        first.step()
        second.zero_grad()
        judge(fake).mean().backward()
        second.step()
    return [maker, judge, first, second]


@pytest.mark.parametrize("loop", [plain, scaled, accumulated, closures, adversarial])
def test_bit_for_bit(loop: Loop, feed: Feed) -> None:
    assert twins(loop, feed).steps, "nothing was watched"


@pytest.mark.hazard(49)
def test_patches_leave_no_trace(feed: Feed) -> None:
    places = [
        (torch.Tensor, "backward"),
        (torch.autograd, "backward"),
        (torch_clip, "_get_total_norm"),
        (torch_clip, "_clip_grads_with_norm_"),
        (torch.nn.utils, "get_total_norm"),
        (torch.amp.GradScaler, "step"),
        (torch.utils.data.DataLoader, "__iter__"),
    ]
    before = [getattr(owner, name) for owner, name in places]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = tuimon.watch(model, optimizer)
    during = [getattr(owner, name) for owner, name in places]
    assert all(now is not old for now, old in zip(during, before, strict=True))
    assert inspect.signature(torch.Tensor.backward) == inspect.signature(before[0])
    monitor.close()
    monitor.close()
    after = [getattr(owner, name) for owner, name in places]
    assert all(now is old for now, old in zip(after, before, strict=True))
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


@pytest.mark.hazard(49)
def test_a_foreign_patch_on_top_survives(feed: Feed) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bare = torch.Tensor.backward
    monitor = tuimon.watch(model, optimizer)
    ours = torch.Tensor.backward
    calls = []

    def foreign(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return ours(self, *args, **kwargs)

    torch.Tensor.backward = foreign
    try:
        monitor.close()
        assert torch.Tensor.backward is foreign
        model(torch.randn(4, 6)).sum().backward()
        assert calls == [1]
        tuimon.watch(model, optimizer)
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        assert feed.steps[-1].backward_calls == 1, "wrapped twice, or not again"
    finally:
        torch.Tensor.backward = ours
    monitors._monitors[-1].close()
    assert torch.Tensor.backward is bare


@pytest.mark.hazard(21)
def test_copies_and_files_are_inert(feed: Feed, tmp_path: Any) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    model_copy, optimizer_copy = copy.deepcopy(model), copy.deepcopy(optimizer)
    x = torch.randn(4, 6)
    model_copy(x).sum().backward()
    optimizer_copy.step()
    torch.optim.swa_utils.AveragedModel(model)(x)
    assert feed.steps == []
    buffer = io.BytesIO()
    torch.save(model, buffer)
    torch.save(optimizer, io.BytesIO())
    code = (
        "import sys, io\n"
        "sys.modules['tuimon'] = None\n"
        "import torch\n"
        "model = torch.load(io.BytesIO(sys.stdin.buffer.read()), weights_only=False)\n"
        "print(tuple(model(torch.ones(2, 6)).shape))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], input=buffer.getvalue(), capture_output=True
    )
    assert answer.stdout.decode().strip() == "(2, 1)", answer.stderr.decode()


@pytest.mark.hazard(2)
def test_a_failing_tap_is_said_once_and_disarmed(
    feed: Feed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuimon.train import track

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of order")

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    monkeypatch.setattr(track, "measure", broken)
    for x, y in batches(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert [step.step for step in feed.steps] == list(range(10))
    assert all(step.grad_norm is None and step.loss is not None for step in feed.steps)
    lines = [line for line in capsys.readouterr().err.splitlines() if "gradients" in line]
    assert len(lines) == 2 and all(line.startswith("tuimon: ") for line in lines)
    assert [event.kind for event in feed.events].count("tap-disarmed") == 1


def test_whatever_breaks_inside_a_hook_the_loop_goes_on(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuimon.train import observer
    from tuimon.train.taps import loss

    bare = run(plain, Diary(None))

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    for owner, name in (
        (loss, "_read"),
        (observer.Observer, "used_up"),
        (observer.Observer, "is_nested"),
        (observer.Observer, "reach_boundary"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            watched = run(plain, Diary(tuimon.watch))
        assert differences(bare, watched) == []
        monitors._wiring.observer.boundary.disarmed.clear()
        monitors._wiring.observer.boundary.failures.clear()
        for monitor in list(monitors._monitors):
            monitor.close()


@pytest.mark.hazard(2)
def test_a_watch_that_fails_for_good_is_told_and_refuses(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step is seen any more: that is no silence of the training, and nobody waits for it."""
    from tuimon.train import track

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)

    def steps(count: int) -> None:
        for x, y in batches(count):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

    steps(2)
    assert ring_state(feed) == RUNNING
    monkeypatch.setattr(track.Track, "keep_up", lambda self: 1 / 0)  # before the gate
    steps(1)
    waiting = feed.ask(Pause())
    assert waiting.state == "accepted"
    steps(4)
    assert ring_state(feed) == UNWATCHED
    (told,) = (event for event in feed.events if event.kind == "watch-off")
    assert "ZeroDivisionError" in told.detail and told.severity == "critical"
    assert [state.state for state in feed.states(waiting.id)] == ["accepted", "refused"]
    assert feed.ask(Pause()).state == "refused"
    assert feed.ask(RenewHold(5.0)).state == "accepted", "no news to anybody"


@pytest.mark.hazard(2)
def test_records_that_cannot_be_written_are_told(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuimon.train import session

    original = session.encode

    def broken(record: Any) -> bytes:
        if isinstance(record, Step):
            raise TypeError("out of order")
        return original(record)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    with monkeypatch.context() as patch:
        patch.setattr(session, "encode", broken)
        for x, y in batches(4):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    assert ring_state(feed) == UNWATCHED
    (told,) = (event for event in feed.events if event.kind == "watch-off")
    assert "out of order" in told.detail


def ring_state(feed: Feed) -> int:
    assert feed.session.info is not None
    with contextlib.closing(RingReader(feed.session.info.ring())) as reader:
        return reader.status().state


def test_disabled_is_inert(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIMON_DISABLE", "1")
    before = torch.Tensor.backward
    model = net()
    monitor = tuimon.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert monitor.closed and torch.Tensor.backward is before and not model._forward_pre_hooks
    monitor.log(loss=1.0)
    with monitor.step(), monitor.detached():
        assert monitor.skip() is False
    monitor.close()


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "roll over"},
        {"guard": "device"},
        {"snapshot_every": -10},
        {"activations": ["0"]},
        {"check_every": 0},
        {"budget_frac": -0.1},
    ],
)
def test_what_cannot_be_had_is_refused(options: dict[str, Any]) -> None:
    model = net()
    with pytest.raises(ValueError, match=r"tuimon\.watch: "):
        tuimon.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


@pytest.mark.hazard(35)
def test_the_same_objects_have_one_monitor(feed: Feed) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = tuimon.watch(model, optimizer)
    assert tuimon.watch(model, optimizer) is monitor
    assert len(model._forward_pre_hooks) == 1
    assert len(optimizer._optimizer_step_pre_hooks) == 1


@pytest.mark.hazard(36)
def test_watching_keeps_nothing_alive(feed: Feed) -> None:
    import gc
    import weakref

    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    model(torch.randn(4, 6)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    gone = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)]
    del model, optimizer
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]


@pytest.mark.hazard(18)
def test_fullgraph_compile_is_unbroken(feed: Feed) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for x, y in batches(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(compiled(x), y).backward()
        optimizer.step()
    assert len(feed.steps) == 3 and feed.steps[-1].grad_norm is not None
