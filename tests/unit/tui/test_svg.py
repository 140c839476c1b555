"""A picture holds the text of the screen, its colours, and nothing that an SVG would obey."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

from rich.segment import Segment
from rich.style import Style

from tests.tui.fake import FakeRun
from tools.screen_svg import text_layer
from tuimon.tui.draw.svg import CELL_W, from_rows
from tuimon.tui.draw.theme import Look
from tuimon.tui.once import render_once, svg_once
from tuimon.tui.scene import Scene
from tuimon.tui.stories.copying import write_picture

SVG = "{http://www.w3.org/2000/svg}"
FRAME = FakeRun(steps=2000, blocks=2, incident=True).frame()


def words_of(picture: str) -> set[str]:
    return {element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}text")}


def test_every_word_of_the_screen_is_text_of_the_picture() -> None:
    shapes = re.compile("[─│┤╭╮╰╯━┃\u2581-\u2588\u2800-\u28ff]")
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", render_once(FRAME, colour=True))
    drawn = [shapes.sub(" ", line).rstrip() for line in coloured.split("\n")]
    assert text_layer(svg_once(FRAME)) == drawn


def test_themes_and_sizes() -> None:
    light = ET.fromstring(svg_once(FRAME, 80, 24, theme="light"))
    assert light.get("viewBox") == f"0 0 {80 * CELL_W} {24 * 19}"
    assert light.find(f"{SVG}rect").get("fill") == "#ffffff"  # type: ignore[union-attr]
    assert set(re.findall("#[0-9a-f]{6}", svg_once(FRAME))) >= {"#121212", "#d70000", "#5fd7af"}


def test_wide_reversed_and_hostile_cells() -> None:
    row = [
        Segment("界x", Style(reverse=True)),
        Segment("</text><script>&\x1b[1m", Style(color="red", bold=True)),
    ]
    picture = from_rows([row])
    root = ET.fromstring(picture)
    found = list(root.iter(f"{SVG}text"))
    assert found[0].text == "界x" and found[0].get("textLength") == str(3 * CELL_W)
    assert found[0].get("fill") == "#121212"
    assert found[1].get("font-weight") == "bold" and found[1].get("x") == str(3 * CELL_W)
    assert "\x1b" not in picture and not list(root.iter(f"{SVG}script"))


def test_each_picture_is_a_new_file(tmp_path: Path) -> None:
    scene = Scene(replace(FRAME, name="../a b"), Look())
    first = write_picture(scene, (120, 40), tmp_path)
    second = write_picture(scene, (120, 40), tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["tuimon-a-b-step-1999-2.svg", "tuimon-a-b-step-1999.svg"]
    assert names[1] in first and names[0] in second
    assert "NaN" in words_of((tmp_path / names[0]).read_text())
    assert "not written" in write_picture(scene, (120, 40), tmp_path / "missing")
