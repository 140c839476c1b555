"""Commands by the names that people use; class names stay on the wire."""

from __future__ import annotations

import pytest

from tuimon.cli.control import sentence
from tuimon.model import commands
from tuimon.model.commands import title_words
from tuimon.model.records import CommandState
from tuimon.tui.panels.events import command_words
from tuimon.view.ledger import Ledger


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (commands.Pause(), "pause"),
        (commands.StepOnce(), "one step"),
        (commands.StepOnce(1200), "1,200 steps"),
        (commands.SetClip("on", 1.0), "clip on 1.0"),
        (commands.SetClip("on", 1e-05), "clip on 1e-05"),
        (commands.SetClip("off"), "clip off"),
        (commands.SetClip("user"), "clip as the script does"),
        (commands.SetMaxNorm(0.25), "max_norm 0.25"),
        (commands.Dump(["a.weight"], "/x"), "dump a.weight"),
        (commands.Dump(["a", "b"], "/x"), "dump a, b"),
        (commands.Dump(["a", "b", "c", "d", "e"], "/x"), "dump a, b, c and 2 more"),
        (commands.Dump(["a\x1b", ""], "/x"), "dump a\ufffd, all layers"),
        (commands.Stop(), "stop"),
    ],
)
def test_a_command_in_words(command, words):
    assert command.words == words


@pytest.mark.parametrize(
    ("title", "words"), [("SetClip", "clip"), ("ArmHold", "arm hold"), ("Stop", "stop")]
)
def test_a_name_alone_in_words(title, words):
    assert title_words(title) == words


def test_the_life_of_a_command_keeps_its_words():
    ledger = Ledger()
    ledger.add(CommandState("1", "SetClip", "sent", words="clip on 1.0"))
    ledger.add(CommandState("1", "SetClip", "applied", step=1200, old="user", new="on 1.0"))
    (state,) = ledger.newest
    assert command_words(state) == "clip on 1.0 applied at step 1,200 (user → on 1.0)"
    assert command_words(CommandState("2", "SetClip", "refused")) == "clip refused"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (CommandState("1", "Pause", "applied", step=3), "pause applied at step 3"),
        (
            CommandState("1", "SetClip", "applied", step=3, new="on 1"),
            "clip applied at step 3: on 1",
        ),
        (
            CommandState("1", "SetClip", "applied", step=3, old="user", new="on 1", reason="now"),
            "clip applied at step 3: user → on 1, now",
        ),
        (CommandState("1", "Stop", "refused", reason="too late"), "stop refused: too late"),
    ],
)
def test_what_ctl_prints_holds_no_dash_for_what_is_not_there(
    state: CommandState, words: str
) -> None:
    assert sentence(state) == words
    assert "–" not in command_words(state)
