"""Commands through the real socket: pause, step, resume, stop, dump, refusals and their ledger."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tuimon
from tests.train.conftest import Feed, folder_listing, wait_for
from tuimon.model import commands
from tuimon.model.records import PAUSED, RUNNING, CommandState
from tuimon.train import monitor as monitors
from tuimon.train.control import dump


class Training:
    """A loop in this thread, and a viewer in another that talks to it."""

    def __init__(self, feed: Feed, steps: int = 1_000_000) -> None:
        torch.manual_seed(0)
        self.feed = feed
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.monitor = tuimon.watch(self.model, self.optimizer)
        self.steps_done = 0
        self._limit = steps
        self.stop: BaseException | None = None
        self._failure: list[BaseException] = []

    def loop(self) -> None:
        for _ in range(self._limit):
            x = torch.randn(4, 3)
            self.optimizer.zero_grad()
            self.model(x).pow(2).mean().backward()
            self.optimizer.step()
            self.steps_done += 1

    def with_viewer(self, viewer: Callable[[], None]) -> None:
        """Run the loop while `viewer` acts; it must stop the training, or end after its steps."""

        def act() -> None:
            try:
                viewer()
            except BaseException as error:
                self._failure.append(error)
            finally:
                self.feed.ask(commands.Resume())
                self.feed.ask(commands.Stop())

        thread = threading.Thread(target=act)
        thread.start()
        try:
            with pytest.raises(tuimon.Stop) as stopped:
                self.loop()
            self.stop = stopped.value
        finally:
            thread.join(30)
        if self._failure:
            raise self._failure[0]

    def header(self) -> tuple[int, int | None]:
        self.feed.read()
        status = self.feed._reader.status()
        return status.state, status.step


def applied(feed: Feed, command: commands.Command) -> CommandState:
    answer = feed.ask(command)
    assert answer.state == "accepted", answer.reason
    wait_for(lambda: feed.states(answer.id)[-1:] and feed.states(answer.id)[-1].state != "accepted")
    assert [state.state for state in feed.states(answer.id)] == ["accepted", "applied"]
    return feed.states(answer.id)[-1]


def test_pause_step_resume_stop(feed: Feed) -> None:
    training = Training(feed)

    def viewer() -> None:
        wait_for(lambda: training.steps_done > 3)
        paused = applied(feed, commands.Pause())
        wait_for(lambda: training.header()[0] == PAUSED)
        assert training.steps_done == paused.step
        assert (paused.old, paused.new, paused.by) == ("running", "paused", "tester@here")
        one = applied(feed, commands.StepOnce(1))
        wait_for(lambda: training.header() == (PAUSED, paused.step))
        assert training.steps_done == paused.step + 1 and one.step == paused.step
        applied(feed, commands.StepOnce(5))
        wait_for(lambda: training.header() == (PAUSED, paused.step + 5))
        assert training.steps_done == paused.step + 6
        clip = applied(feed, commands.SetClip("on", 0.001))
        assert (clip.old, clip.new, clip.step) == ("user", "on 0.001", training.steps_done)
        resumed = applied(feed, commands.Resume())
        wait_for(lambda: training.steps_done > resumed.step + 2)
        assert training.header()[0] == RUNNING
        feed.read()
        first = next(step for step in feed.steps if step.step == resumed.step)
        assert first.clip == "on" and first.grad_norm_clipped == pytest.approx(0.001, rel=1e-2)
        assert feed.steps[first.step - 1].clip == "user"

    training.with_viewer(viewer)
    kinds = [event.kind for event in feed.events]
    assert [kinds.count(kind) for kind in ("pause", "resume", "clip", "stop")] == [1, 1, 1, 1]
    steps = feed.steps
    assert steps[-1].step + 1 == training.steps_done == len(steps), "stopped in mid-update"
    assert max(step.cost_s for step in steps) < 1.0, "the wait at the gate counts as a cost"
    assert str(training.stop) == f"stopped by tester@here at step {training.steps_done}"


def test_a_pause_that_nobody_can_end_any_more_ends(feed: Feed) -> None:
    """The run folder is deleted while the training waits: no viewer can resume it."""
    training = Training(feed, steps=40)

    def pause() -> None:
        wait_for(lambda: training.steps_done > 3)
        applied(feed, commands.Pause())
        wait_for(lambda: training.header()[0] == PAUSED)
        assert feed.session.info is not None
        shutil.rmtree(feed.session.info.path)

    thread = threading.Thread(target=pause)
    thread.start()
    training.model.register_forward_hook(lambda *_: time.sleep(0.01))
    training.loop()
    thread.join(30)
    assert training.steps_done == 40
    (event,) = [each for each in feed.events if each.kind == "cut-off"]
    assert "nobody could end it" in event.text and event.severity == "warning"
    assert feed.of(CommandState)[-1].by == "tuimon"


def test_refusals_have_reasons(feed: Feed) -> None:
    training = Training(feed, steps=1)
    training.loop()
    refused = {
        "not paused": commands.StepOnce(1),
        "max_norm": commands.SetClip("on"),
        "give a finite": commands.SetMaxNorm(math.inf),
        "no layer": commands.Dump(["nope"], "/tmp"),
        "absolute": commands.Dump(["0"], "relative"),
    }
    for reason, command in refused.items():
        answer = feed.ask(command)
        assert answer.state == "refused" and reason in answer.reason, answer
        assert not feed.states(answer.id) or feed.states(answer.id)[0].state == "refused"
    assert training.header()[0] == RUNNING


def test_the_users_bound_is_known(feed: Feed) -> None:
    training = Training(feed)
    nn.utils.clip_grad_norm_([torch.ones(1, requires_grad=True)], 9.0)
    assert feed.ask(commands.SetClip("on")).state == "refused", "that was another model's"
    training.model(torch.ones(1, 3)).sum().backward()
    nn.utils.clip_grad_norm_(training.model.parameters(), 3.0)
    assert feed.ask(commands.SetClip("on")).state == "accepted"
    training.optimizer.step()
    assert monitors._wiring.observer.clipping.describe() == "on 3"


@pytest.mark.hazard(32)
def test_interrupt_while_paused(feed: Feed) -> None:
    training = Training(feed)
    assert feed.ask(commands.Pause()).state == "accepted"

    def interrupt() -> None:
        wait_for(lambda: training.header()[0] == PAUSED)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        training.loop()
    thread.join()
    assert not isinstance(caught.value, tuimon.Stop)
    assert training.header()[0] == RUNNING and training.steps_done == 0


def test_stop_without_any_forward(feed: Feed) -> None:
    training = Training(feed)
    assert feed.ask(commands.Stop()).state == "accepted"
    training.optimizer.step()
    with pytest.raises(tuimon.Stop):
        training.optimizer.step()


def test_explicit_boundaries(feed: Feed) -> None:
    training = Training(feed)
    seen = []
    with pytest.raises(tuimon.Stop):
        for index in range(5):
            with training.monitor.step():
                if index == 2:
                    assert feed.ask(commands.Stop()).state == "accepted"
                training.model(torch.ones(1, 3)).sum().backward()
                training.optimizer.step()
                seen.append(index)
    assert seen == [0, 1, 2]


def test_dump(feed: Feed, tmp_path: Path) -> None:
    training = Training(feed)
    wanted: dict[str, torch.Tensor] = {}

    def viewer() -> None:
        wait_for(lambda: training.steps_done > 2)
        step = applied(feed, commands.Pause()).step
        state = applied(feed, commands.Dump(["0", "2.bias"], str(tmp_path / "out")))
        assert Path(state.new) == tmp_path / "out" / f"step-{step:06d}"
        for name, param in training.model.named_parameters():
            wanted[name] = param.detach().clone()
            wanted[f"{name}.grad"] = param.grad.clone()
        again = applied(feed, commands.Dump(["0.weight"], str(tmp_path / "out")))
        assert again.new == f"{state.new}-1" and again.reason == "1 parameter"
        typo = feed.ask(commands.Dump(["0"], str(tmp_path / "otu" / "a" / "b")))
        assert typo.reason == f"{tmp_path / 'otu'} does not exist; make it first"

    training.with_viewer(viewer)
    assert "otu" not in folder_listing(tmp_path)
    (told, _) = [event.text for event in feed.events if event.kind == "dump"]
    assert told.startswith("dump 0, 2.bias: 3 parameters to ")
    assert len(folder_listing(tmp_path / "out")) == 2
    folder = tmp_path / "out" / folder_listing(tmp_path / "out")[0]
    assert folder_listing(folder) == ["statistics.json", "tensors.safetensors"]
    stored = load_file(folder / "tensors.safetensors")
    assert set(stored) == {
        f"{name}{tail}" for name in ("0.weight", "0.bias", "2.bias") for tail in ("", ".grad")
    }
    assert all(torch.equal(values, wanted[name]) for name, values in stored.items())
    found = json.loads((folder / "statistics.json").read_text())["tensors"]["0.weight"]
    assert found["shape"] == [4, 3] and found["nan"] == 0
    assert found["mean"] == pytest.approx(wanted["0.weight"].mean().item(), rel=1e-5)
    assert found["std"] == pytest.approx(wanted["0.weight"].std(correction=0).item(), rel=1e-5)


def test_odd_tensors_can_be_dumped(tmp_path: Path) -> None:
    made = {
        "half": nn.Parameter(torch.tensor([1.0, math.nan, math.inf, -math.inf]).half()),
        "strided": nn.Parameter(torch.arange(6.0).reshape(2, 3).t()),
        "complex": nn.Parameter(torch.tensor([1 + 2j])),
        "empty": nn.Parameter(torch.ones(0)),
        "integer": nn.Parameter(torch.tensor([1, 2]), requires_grad=False),
        "float8": nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn)),
        "meta": nn.Parameter(torch.empty(2, device="meta")),
        "sparse": nn.Parameter(torch.ones(2, 2)),
    }
    made["tied"] = made["strided"]
    made["sparse"].grad = torch.eye(2).to_sparse()
    outcome = dump.write_dump(str(tmp_path), list(made.items()), step=7, note="by a test")
    assert outcome.reason == "" and outcome.layers == len(made)
    assert outcome.folder is not None and outcome.folder.name == "step-000007"
    stored = load_file(outcome.folder / "tensors.safetensors")
    assert stored["strided"].tolist() == made["strided"].tolist() == stored["tied"].tolist()
    assert stored["complex"].tolist() == [[1.0, 2.0]] and "meta" not in stored
    assert stored["sparse.grad"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    document = json.loads((outcome.folder / "statistics.json").read_text())
    figures = document["tensors"]
    assert (figures["half"]["nan"], figures["half"]["posinf"], figures["half"]["neginf"]) == (
        1,
        1,
        1,
    )
    assert figures["half"]["max"] == 1.0 and figures["integer"]["max"] == 2.0
    assert figures["half.grad"] is None and document["note"] == "by a test"


def test_a_dump_that_cannot_be_is_refused_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [("w", nn.Parameter(torch.ones(3)))]
    file = tmp_path / "file"
    file.write_text("")
    assert "cannot write" in dump.write_dump(str(file / "x"), layers, step=0).reason
    monkeypatch.setattr(dump, "MARGIN_BYTES", 1 << 60)
    assert "free" in dump.write_dump(str(tmp_path / "full"), layers, step=0).reason
    monkeypatch.undo()

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dump, "save_file", broken)
    assert "No space left" in dump.write_dump(str(tmp_path / "late"), layers, step=0).reason
    assert folder_listing(tmp_path) == ["file"]
    assert dump.write_dump(str(tmp_path), [], step=0).reason


def test_a_failing_dump_costs_nothing_but_the_dump(feed: Feed, tmp_path: Path) -> None:
    training = Training(feed, steps=2)
    folder = tmp_path / "gone"
    folder.mkdir()
    answer = feed.ask(commands.Dump(["0"], str(folder / "inner")))
    assert answer.state == "accepted"
    folder.rmdir()
    folder.write_text("a file now")
    training.loop()
    assert [state.state for state in feed.states(answer.id)] == ["accepted", "refused"]
    assert "dump-failed" in [event.kind for event in feed.events]
    assert training.steps_done == 2
