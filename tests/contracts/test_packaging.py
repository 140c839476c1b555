"""What is installed, from where, and that each fact about it is written down once."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import tuimon
from tuimon.demos import DEFAULT, SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEMOS = sorted(path for path in (ROOT / "demo").glob("*.py") if path.stem != "__init__")


def distribution(requirement: str) -> str:
    """The normalised name in a requirement or a pin."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_every_package_is_installed() -> None:
    folders = {path.parent for path in (ROOT / "tuimon").rglob("__init__.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == names | {"tuimon.demos"}


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tuimon").rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_what_we_require_is_pinned() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["torch"], *extras["dev"]]
    pins = {
        distribution(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert {distribution(requirement) for requirement in wanted} <= pins
    assert "torch" not in {distribution(line) for line in PROJECT["project"]["dependencies"]}


def test_the_version_is_written_once() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    sources = (ROOT / "tuimon").rglob("*.py")
    holders = [path for path in sources if f'"{tuimon.__version__}"' in path.read_text()]
    assert holders == [ROOT / "tuimon" / "__init__.py"]
    assert f"## {tuimon.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_python_version_is_written_once() -> None:
    needed = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert "target-version" not in PROJECT["tool"]["ruff"]
    assert "python_version" not in PROJECT["tool"]["mypy"]
    assert f"Python ≥ {needed}" in (ROOT / "README.md").read_text()


def test_the_table_of_demos_names_every_script() -> None:
    assert sorted(scenario.path for scenario in SCENARIOS.values()) == DEMOS
    assert DEFAULT in SCENARIOS
    for name, scenario in SCENARIOS.items():
        assert name == scenario.path.stem.replace("_", "-")
        assert scenario.about.endswith(".") and scenario.hint.endswith(".")


@pytest.mark.parametrize("script", DEMOS, ids=lambda path: path.stem)
def test_a_demo_is_an_ordinary_script(script: Path) -> None:
    tree = ast.parse(script.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= {"__future__", "argparse", "time", "torch"}
    assert any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
