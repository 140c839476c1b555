"""Every test has its own home for runs; nothing of the user's is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "hazard(*numbers): proves the behaviour that tests.contracts.hazards asks for"
    )


@pytest.fixture(autouse=True)
def run_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder that holds the run folders of this test; child processes inherit it."""
    home = tmp_path / "runs"
    monkeypatch.setenv("TUIMON_DIR", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TUIMON_DISABLE", raising=False)
    monkeypatch.delenv("TUIMON_SCRIBE", raising=False)
    return home
