"""The pictures of the README show the program as it is: what no run decides is drawn alike now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tui.driving import driven
from tests.tui.fake import FakeRun
from tests.tui.incidents import FINDINGS, incident_frame
from tools.screen_svg import text_layer

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
KEYS = {
    "overview": (),
    "layers": ("3",),
    "charts": ("2", "at", "1", "k", "enter"),
    "incident": ("v",),
}
AGAIN = "make them anew: python tools/write_pictures.py"


def test_the_readme_shows_all_of_them() -> None:
    shown = re.findall(r"!\[[^]]+\]\(docs/(\w+)\.svg\)", (ROOT / "README.md").read_text())
    assert sorted(shown) == sorted(path.stem for path in DOCS.glob("*.svg")) == sorted(KEYS)


@pytest.mark.parametrize("name", KEYS)
async def test_a_picture_has_todays_panels_and_keys(name: str) -> None:
    run = FakeRun(steps=2000, blocks=2, incident=name != "overview")
    frame = incident_frame(findings=FINDINGS) if name == "incident" else run.frame()
    async with driven(frame) as viewer:
        drawn = (await viewer.press(*KEYS[name]) if KEYS[name] else viewer.text).splitlines()
    picture = text_layer((DOCS / f"{name}.svg").read_text(encoding="utf-8"))
    assert len(picture) == len(drawn) == 40
    assert picture[-1] == drawn[-1], f"the footer is another one now; {AGAIN}"
    text = " ".join(picture)
    assert re.search(r" tuimon  \w+ .* step +[\d,]+ ", text), "the header"
    titles = [title for line in drawn for title in re.findall(r"╭─ ([a-z]+)", line)]
    assert titles
    missing = [title for title in titles if f" {title} " not in text and title not in ("loss",)]
    assert not set(missing) - {"amp"}, f"panels that the picture does not have; {AGAIN}"
