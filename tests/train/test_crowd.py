"""More valid commands than a training can carry out: what is refused, who still gets through."""

from __future__ import annotations

import socket
import time

import msgspec
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.feed import channel
from tuimon.model import commands
from tuimon.model.records import CommandState
from tuimon.train import monitor as monitors
from tuimon.train.control import waiting

ASKED = 150


class Training:
    """A loop of which single updates are made."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def update(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(4, 3)).pow(2).mean().backward()
        self.optimizer.step()


def flood(feed: Feed, by: str, count: int) -> list[CommandState]:
    """So many valid requests at once over one connection, and the answers to them."""
    assert feed.session.info is not None
    frames = b"".join(
        channel.frame(
            msgspec.msgpack.encode(
                commands.Request(f"{by}-{number}", by, commands.SetClip("user"), time.time())
            )
        )
        for number in range(count)
    )
    answers, buffer = [], bytearray()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20.0)
        client.connect(str(feed.session.info.control))
        client.sendall(frames)
        while len(answers) < count:
            buffer += client.recv(1 << 16)
            while (payload := channel.take_frame(buffer)) is not None:
                answers.append(msgspec.msgpack.decode(payload, type=CommandState))
    return answers


def test_a_flood_is_refused_beyond_a_bound_and_the_training_goes_on(feed: Feed) -> None:
    bare, watched = Training(), Training()
    tuimon.watch(watched.model, watched.optimizer)
    for _ in range(3):
        watched.update()
    answers = flood(feed, "eager", ASKED)  # the training makes no update meanwhile
    accepted = [each.id for each in answers if each.state == "accepted"]
    assert accepted == [f"eager-{number}" for number in range(waiting.MAX_OF_ONE)]
    reasons = {each.reason for each in answers if each.state == "refused"}
    assert all("64 commands of yours wait for the next update" in reason for reason in reasons)
    # Not every refusal goes into the ring, where the records of steps have their place.
    told = [each for each in feed.of(CommandState) if each.state == "refused"]
    assert 1 <= len(told) <= 10 and all(each.reason for each in told)

    other = feed.ask(commands.Pause())
    assert other.state == "accepted" and feed.ask(commands.Resume()).state == "accepted"
    for name in ("b", "c", "d"):
        flood(feed, name, waiting.MAX_OF_ONE)
    observer = monitors._wiring.observer
    assert len(observer.gate.queue) == waiting.MAX_WAITING
    assert feed.ask(commands.Pause()).reason == "256 commands wait for the next update already"

    for _ in range(3):
        watched.update()
    applied = {each.id for each in feed.of(CommandState) if each.state == "applied"}
    assert len(applied) == waiting.MAX_WAITING and applied.issuperset([*accepted, other.id])
    assert not observer.gate.queue and flood(feed, "eager-again", 1)[0].state == "accepted"
    for _ in range(6):
        bare.update()
    pairs = zip(bare.model.parameters(), watched.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
