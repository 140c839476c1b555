"""The key table and what is made of it."""

from __future__ import annotations

from textual.keys import Keys

from tests.tui.fake import FakeRun
from tuimon.cli.grammar import SCREENS
from tuimon.tui.draw.glyphs import ASCII, BLOCK, BRAILLE, set_for, to_ascii
from tuimon.tui.draw.theme import FULL, NONE, PALETTES, SIXTEEN, Look, colours_for
from tuimon.tui.helping import help_rows
from tuimon.tui.keys import actions
from tuimon.tui.keys.actions import ACTIONS, GROUPS, bindings, keys_markdown
from tuimon.tui.keys.hinting import hints
from tuimon.tui.scene import Scene
from tuimon.view.frame import GONE, PAUSED


def test_markdown_and_help_hold_every_action() -> None:
    markdown = keys_markdown()
    shown = " ".join(
        "".join(part.text for part in row) for row in help_rows(Look(), 160, 100, readonly=False)
    )
    for action in ACTIONS:
        assert f"| {action.description}" in markdown
        assert action.description[:30] in shown
        assert all(f"`{key}`" in markdown for key in action.keys)
        assert action.group in GROUPS


def test_one_frame_can_be_of_every_screen_that_has_a_digit() -> None:
    by_key = {each.keys[0]: each.id for each in ACTIONS if each.id in actions.SCREENS}
    assert [by_key[digit] for digit in "123456789"] == list(SCREENS)


def test_keys_have_the_names_textual_sends() -> None:
    named = {key.value for key in Keys} | {
        "full_stop", "left_square_bracket", "right_square_bracket", "plus", "minus", "slash",
        "question_mark", "space", "exclamation_mark", "less_than_sign", "greater_than_sign",
        "equals_sign", "colon", "left_parenthesis", "right_parenthesis", "left_curly_bracket",
        "right_curly_bracket", "vertical_line", "at", "comma", "semicolon",
    }  # fmt: skip
    for key, action in bindings(readonly=False):
        assert len(key) == 1 or key in named, (key, action.id)


def test_the_footer_offers_what_can_be_done_here() -> None:
    frame = FakeRun(steps=30).frame()
    on_chart = dict((word, key) for key, word in hints(Scene(frame, Look(), focus="loss")))
    assert on_chart["pause"] == "space" and on_chart["log"] == "y" and "dump" not in on_chart
    on_layers = dict((word, key) for key, word in hints(Scene(frame, Look(), focus="layers")))
    assert on_layers["dump"] == "d"
    paused = FakeRun(steps=30).frame(state=PAUSED)
    assert {"resume", "step"} <= {word for _, word in hints(Scene(paused, Look()))}
    gone = FakeRun(steps=30).frame(state=GONE)
    assert not {"pause", "clip"} & {word for _, word in hints(Scene(gone, Look()))}
    readonly = hints(Scene(frame, Look(), readonly=True))
    assert not {"pause", "clip"} & {word for _, word in readonly}
    assert [word for _, word in readonly[-2:]] == ["help", "quit"]


def test_alphabets_by_environment() -> None:
    utf8 = {"LANG": "C.UTF-8", "TERM": "xterm-256color"}
    assert set_for(utf8) is BRAILLE
    assert set_for(utf8 | {"TERM": "linux"}) is BLOCK
    assert set_for(utf8 | {"LC_ALL": "C"}) is ASCII
    assert set_for({}) is ASCII
    assert set_for(utf8 | {"TERM": "vt100"}) is ASCII
    assert set_for(utf8 | {"TERM": "screen"}) is BRAILLE
    assert to_ascii("α→…–") == "?>~-"


def test_colours_by_environment() -> None:
    assert colours_for({"TERM": "xterm-256color"}) == FULL
    assert colours_for({"TERM": "xterm"}) == SIXTEEN
    assert colours_for({"TERM": "xterm", "COLORTERM": "truecolor"}) == FULL
    assert colours_for({"TERM": "xterm-256color", "NO_COLOR": "1"}) == NONE
    assert colours_for({"TERM": "vt100"}) == NONE


def test_palettes_have_the_same_names_and_exact_colours() -> None:
    names = {frozenset(palette) for palette in PALETTES.values()}
    assert len(names) == 1
    cube = {0, 95, 135, 175, 215, 255}
    greys = {8 + 10 * step for step in range(24)}
    for palette in PALETTES.values():
        for colour in palette.values():
            channels = set(bytes.fromhex(colour[1:]))
            assert channels <= cube or (len(channels) == 1 and channels <= greys), colour


def test_a_colour_belongs_to_a_name() -> None:
    look = Look()
    assert look.series("loss") == look.series("train/loss") != look.series("grad_norm")
    assert look.series("anything") == Look().series("anything")
