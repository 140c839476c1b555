"""What a person chose for the eyes is there again, and no content of its file does any harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.fake import FakeRun
from tuimon.feed.paths import state_folder
from tuimon.tui.draw.glyphs import ASCII, BLOCK, BRAILLE
from tuimon.tui.draw.theme import Look
from tuimon.tui.keeping import dressed, recall, remembered
from tuimon.tui.panes import Sizes
from tuimon.tui.scene import Scene
from tuimon.view.kept import MAX_BYTES, Kept, keep, read_kept


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return state_folder() / "viewer.json"


@pytest.mark.usefixtures("place")
def test_what_is_chosen_comes_back_and_a_flag_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TERM", "xterm-256color")
    scene = Scene(FakeRun(steps=10).frame(), Look(theme="light", glyphs=BLOCK))
    scene.sizes.change("overview", "loss", 4, -2)
    for name in ("theme", "glyphs", "taller"):
        told, colour = remembered(scene, name, keep)
        assert colour == "dim" and name in (told.partition(" ")[0], "taller")
    kept, problem = read_kept()
    assert (problem, kept.theme, kept.glyphs) == ("", "light", {"braille": "block"})
    assert dressed(Look(), kept, theme=None, has_glyphs=False).stamp[::2] == ("light", "block")
    given_ = dressed(Look(glyphs=BRAILLE), kept, theme="dark", has_glyphs=True)
    assert given_.stamp[::2] == ("dark", "braille")
    # Of another terminal nothing was said.
    assert dressed(Look(glyphs=ASCII), kept, theme=None, has_glyphs=False).glyphs is ASCII
    other = Scene(scene.frame, Look())
    recall(other, kept)
    assert other.sizes == Sizes({"overview": {"loss": (4, -2)}})


def test_what_cannot_be_used_is_left_aside_with_one_line(place: Path) -> None:
    assert read_kept() == (Kept(), "")
    place.parent.mkdir(parents=True)
    for content in (b"{", b'{"theme": "pink"}', b'{"sizes": {"a": {"b": [9999, 0]}}}',
                    b"\xff", b" " * (MAX_BYTES + 1)):  # fmt: skip
        place.write_bytes(content)
        kept, problem = read_kept()
        assert kept == Kept() and str(place.parent) in problem and "\n" not in problem, content
        keep(theme="dark")  # the next choice mends it
        assert read_kept() == (Kept(theme="dark"), "")
    place.unlink()
    place.mkdir()
    assert "is not used" in read_kept()[1]
    with pytest.raises(OSError):
        keep(theme="dark")
    scene = Scene(FakeRun(steps=10).frame(), Look())
    assert "until the viewer ends" in remembered(scene, "theme", keep)[0]
    assert [each.name for each in place.parent.iterdir()] == ["viewer.json"], "a draft stays"


@given(content=st.binary(max_size=200))
def test_no_content_raises(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        where = state_folder() / "viewer.json"
        where.parent.mkdir(parents=True)
        where.write_bytes(content)
        read_kept()
