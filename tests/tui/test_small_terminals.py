"""Where a terminal is too small to show all: what lies out of sight is told and can be reached."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.tui.fake import FakeRun, FakeSeries
from tests.tui.full import full_frame
from tuimon.model.records import CommandState
from tuimon.tui.draw.glyphs import ASCII, BRAILLE, GlyphSet
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.actions import SCREENS
from tuimon.tui.keys.choices import CHOICES, settle_focus
from tuimon.tui.keys.hinting import hints
from tuimon.tui.once import paint
from tuimon.tui.scene import Scene
from tuimon.tui.screens import arrange
from tuimon.view.frame import HELD, WAITING, Frame, Replay

FULL = full_frame()
SMALL = ((80, 24), (60, 20))


class Shown:
    """A picture of a size, and the keys of a person in front of it."""

    def __init__(self, frame: Frame, size: tuple[int, int], glyphs: GlyphSet = BRAILLE) -> None:
        self.scene = Scene(frame, Look(glyphs=glyphs))
        self.size = size

    def press(self, *names: str) -> str:
        """Do what these keys do; the picture then."""
        scene = self.scene
        for name in names:
            CHOICES[name](scene, arrange(scene, *self.size))
            settle_focus(scene, arrange(scene, *self.size))
        scene.hint = hints(scene)
        rows = paint(scene, *self.size)
        return "\n".join("".join(part.text for part in row).rstrip() for row in rows)

    @property
    def in_sight(self) -> bool:
        """Whether the focused panel is in the picture."""
        return self.scene.focus in [box.panel for box in arrange(self.scene, *self.size)]


def many_series() -> Frame:
    """A frame with seven charts."""
    names = ("lr", "step_s", "memory", "val_loss")
    return FakeRun(
        steps=400, extra={name: FakeSeries(name, np.linspace(1, 2, 400)) for name in names}
    ).frame()


@pytest.mark.parametrize("size", SMALL)
def test_tab_reaches_every_chart_and_a_line_counts_those_out_of_sight(
    size: tuple[int, int],
) -> None:
    shown = Shown(many_series(), size)
    first = shown.press("charts")
    below = 4 if size[1] == 24 else 5
    assert f"▼ {below} more " in first and "▲" not in first.splitlines()[-2]
    seen = []
    for _ in range(7):
        seen.append(shown.scene.focus)
        assert shown.in_sight
        last = shown.press("next_panel")
    assert len(set(seen)) == 7 and last == first
    assert f"▲ {below} more loss" in shown.press("previous_panel")  # round, to the last one
    assert shown.scene.focus == "chart:val_loss"
    assert shown.press("top") == first
    shown.press("down")
    assert shown.scene.focus == "chart:grad_norm" and shown.in_sight


def test_ascii_tells_it_as_well_and_a_zoomed_chart_gives_way_to_the_next() -> None:
    shown = Shown(many_series(), (60, 20), ASCII)
    assert "v 5 more lr" in shown.press("charts")
    assert "^ 5 more" in shown.press("bottom")
    shown.press("top", "zoom")
    assert " lr " in shown.press("next_panel", "next_panel").splitlines()[1]
    assert shown.scene.zoomed


def test_where_all_charts_fit_no_line_tells_of_more() -> None:
    assert "more" not in Shown(many_series(), (120, 40)).press("charts")


@pytest.mark.parametrize("size", SMALL)
def test_every_panel_of_the_machine_opens_when_it_has_the_focus(size: tuple[int, int]) -> None:
    shown = Shown(FULL, size)
    assert "peak 75.0 GiB" in shown.press("system")
    assert "the rest" in shown.press("next_panel") + shown.press(*["down"] * 3)
    assert "its memory" in shown.press("next_panel")
    assert "older output" in shown.press("next_panel") + shown.press(*["down"] * 3)
    assert shown.scene.focus == "cost"


def test_n_goes_to_trouble_on_every_screen_with_a_time() -> None:
    for screen in ("charts", "amp", "system"):
        shown = Shown(FULL, (120, 40))
        shown.press(screen, "next_panel", "next_panel", "next_bad")
        assert shown.scene.charts.cross_step is not None, screen
    shown = Shown(FULL, (120, 40))
    shown.press("layers", "open", *["next_panel"] * 6, "last_bad")
    assert shown.scene.focus.startswith("hist:") and shown.scene.charts.cross_step is not None
    shown = Shown(FULL, (120, 40))
    assert "step 320 " in shown.press("data", "down")
    assert "step 360 " in shown.press("last_bad") and "7 NaN" in shown.press()


@pytest.mark.parametrize("size", SMALL)
def test_no_line_of_words_ends_within_a_word(size: tuple[int, int]) -> None:
    told = re.findall(r"[^\s,]+", f"{FULL.events[-1].text} {FULL.events[-1].detail}")
    lines = Shown(FULL, size).press().splitlines()
    for line in (lines[1], *lines[-3:]):
        for cut in re.findall(r"(\S+)…", line):
            assert cut in told, line


def test_what_the_red_line_says_is_not_said_again() -> None:
    text = Shown(FULL, (80, 24)).press()
    assert text.count("NaN gradients in 163 layers") == 1 and "after growing" in text


@pytest.mark.parametrize("size", SMALL)
def test_commands_can_be_read_where_there_is_little_room(size: tuple[int, int]) -> None:
    done = tuple(
        CommandState(f"id{at}", "Pause", "applied", step=at, by="ada", asked_at_s=1e9 + at)
        for at in range(30)
    )
    shown = Shown(replace(FULL, commands=done), size)
    shown.press("events", "previous_panel")
    assert shown.scene.focus == "ledger" and "step 29" in shown.press()
    assert "step 0" in shown.press("zoom", "bottom")


@pytest.mark.parametrize(
    "notice", ["", "clip on 0.5 accepted: it is applied before the next update"]
)
@pytest.mark.parametrize("size", SMALL)
def test_every_footer_names_help_and_quit_and_cuts_no_key(
    size: tuple[int, int], notice: str
) -> None:
    plays = replace(FULL, replay=Replay(True, 4.0))
    for frame in (FULL, replace(FULL, state=HELD), Frame(state=WAITING), plays):
        for screen in SCREENS:
            shown = Shown(frame, size)
            shown.scene.replays = frame.replay is not None
            shown.scene.notice = (notice, "dim")
            footer = shown.press(screen).splitlines()[-1]
            assert footer.endswith("  ? help  q quit"), footer
            known = {" ".join(hint) for hint in shown.scene.hint}
            keys = [*footer.strip().split("  ")][bool(notice) :]
            assert {*keys} <= known, footer
            assert bool(notice) or "1-9 view" in keys
