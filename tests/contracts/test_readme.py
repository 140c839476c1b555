"""What the README says about keys, commands, statuses and variables is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.write_readme import PAGES, filled
from tuimon import errors
from tuimon.tui.keys.actions import ACTIONS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_keys_and_commands_are_those_of_the_program(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled(page, text) == text, "run: python tools/write_readme.py"


def test_every_page_and_picture_that_is_linked_exists() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"


def test_every_key_has_one_meaning_where_it_can_be_pressed() -> None:
    for group in {action.panels for action in ACTIONS}:
        keys = [key for action in ACTIONS if action.panels == group for key in action.keys]
        assert len(keys) == len(set(keys))


def test_every_status_is_documented() -> None:
    statuses = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)} == statuses


def test_every_variable_is_documented() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tuimon").rglob("*.py"))
    read = set(re.findall(r"\bTUIMON_[A-Z]+\b", sources)) | {"NO_COLOR"}
    assert set(re.findall(r"^\| `([A-Z_]+)=", README, re.MULTILINE)) == read


def test_scripts_that_print_figures_exist_with_the_options_that_are_told() -> None:
    pages = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))]
    words = " ".join(" ".join(pages).split())
    benches = {path.stem: path.read_text() for path in (ROOT / "tests/bench").glob("bench_*.py")}
    assert set(re.findall(r"\bbench_\w+", words)) <= set(benches)
    for name, source in benches.items():
        assert "ArgumentParser(" in source, f"{name} has no --help"
    for name, options in re.findall(r"`python -m tests\.bench\.(\w+)([^`]*)`", words):
        for option in re.findall(r"--[a-z-]+", options):
            assert f'"{option}"' in benches[name], f"{name} {option}"


def test_the_two_commands_exist() -> None:
    for script in re.findall(r"^\$ sh (\S+)", README, re.MULTILINE):
        assert (ROOT / script).is_file()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
