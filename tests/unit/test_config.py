"""`tuimon.toml`: where it is looked for, what it may say, and what wins over it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.config import (
    FILE,
    MAX_BYTES,
    Settings,
    price_per_hour,
    read_settings,
)
from tuimon.errors import UsageError

NOWHERE = {"HOME": "/nonexistent"}


def written(folder: Path, text: str) -> Path:
    (folder / FILE).write_text(text)
    return folder


def test_none_is_the_usual(tmp_path: Path) -> None:
    assert read_settings(tmp_path, NOWHERE) == Settings()
    assert Settings().by_command() == {"run": {}, "attach": {}}


def test_what_is_said(tmp_path: Path) -> None:
    text = '[run]\non_non_finite = "hold"\nmax_hold = 60\n[attach]\nhz = 4\nreadonly = true\n'
    found = read_settings(written(tmp_path, text), NOWHERE)
    assert found.by_command() == {
        "run": {"on_non_finite": "hold", "max_hold": 60},
        "attach": {"hz": 4, "readonly": True},
    }


def test_the_environment_wins(tmp_path: Path) -> None:
    place = written(tmp_path, '[run]\nautopsy = "light"\n')
    assert read_settings(place, NOWHERE).run.autopsy == "light"
    assert read_settings(place, {**NOWHERE, "TUIMON_AUTOPSY": "off"}).run.autopsy is None


def test_the_folder_wins_over_the_person(tmp_path: Path) -> None:
    own = tmp_path / "config" / "tuimon"
    own.mkdir(parents=True)
    environ = {"XDG_CONFIG_HOME": str(own.parent)}
    written(own, "[attach]\nhz = 2\n")
    assert read_settings(tmp_path, environ).attach.hz == 2
    written(tmp_path, "[attach]\nhz = 5\n")
    assert read_settings(tmp_path, environ).attach.hz == 5


def test_a_price(tmp_path: Path) -> None:
    place = written(tmp_path, "price_per_hour = 2.5\n")
    assert price_per_hour(place, NOWHERE) == 2.5
    assert price_per_hour(place, {**NOWHERE, "TUIMON_PRICE": "0.5"}) == 0.5
    assert price_per_hour(tmp_path / "none", NOWHERE) is None
    for wrong in ("-1", "nan", "cheap"):
        with pytest.raises(UsageError, match="is no price"):
            price_per_hour(place, {**NOWHERE, "TUIMON_PRICE": wrong})


def test_what_is_recorded_is_of_no_command(tmp_path: Path) -> None:
    place = written(tmp_path, "[record]\nmax_bytes = 9000000\nkeep_runs = 3\n")
    found = read_settings(place, NOWHERE)
    assert (found.record.on, found.record.max_bytes, found.record.keep_runs) == (None, 9000000, 3)
    assert "record" not in found.by_command()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run]\nmax_hold = 'long'\n", "max_hold"),
        ("[run]\non_nonfinite = 'hold'\n", "on_nonfinite"),
        ("[run]\non_non_finite = 'explode'\n", "on_non_finite"),
        ("[attach]\nhz = 0.1\n", "hz"),
        ("[attach]\nglyphs = 'runes'\n", "glyphs"),
        ("[recorder]\n", "recorder"),
        ("[record]\nmax_bytes = 1000\n", "max_bytes"),
        ("[run\n", "TOML"),
        ("x = " + "[" * 5000, "TOML"),
        ("#" * (MAX_BYTES + 1), "bytes"),
    ],
)
def test_what_cannot_be_followed_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        read_settings(written(tmp_path, text), NOWHERE)
    assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_not_followed(tmp_path: Path) -> None:
    os.chown(written(tmp_path, "") / FILE, 4321, -1)
    os.chmod(tmp_path / FILE, 0o644)
    with pytest.raises(UsageError, match="another user"):
        read_settings(tmp_path, NOWHERE)


@given(content=st.binary(max_size=200))
def test_no_content_ends_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / FILE).write_bytes(content)
    try:
        read_settings(folder, NOWHERE)
    except UsageError as error:
        assert "\n" not in str(error)
