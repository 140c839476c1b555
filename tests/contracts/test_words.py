"""Nothing in the project names the machine on which it was written."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def project_files() -> list[Path]:
    """Every file that is, or would be, in the repository."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    names = (ROOT / name for name in listing.stdout.split("\0") if name)
    return [path for path in names if path.is_file()]


def forbidden() -> re.Pattern[str]:
    """Folders of this checkout and of whoever runs the tests, and home folders as such."""
    folders = {str(ROOT), str(Path.home()), str(ROOT.parent)}
    folders -= {"/", tempfile.gettempdir(), "/tmp", "/root", str(Path("/home"))}
    own = "|".join(re.escape(folder + "/") for folder in sorted(folders))
    return re.compile(rf"(?<![\w./-])(?:{own}|/(?:home|Users)/\w+/|/root/)")


def test_no_path_of_a_machine() -> None:
    pattern = forbidden()
    found = []
    for path in project_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if path != Path(__file__).resolve() and pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []
