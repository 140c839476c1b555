"""A pickle without anything around it is told by reading it, and so is what it would run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tuimon.inspect.bare_pickle import refusal


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("protocol", range(6))
def test_what_it_would_run_is_named_and_not_run(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile.pkl"
    path.write_bytes(pickle.dumps({"weights": [1.0] * 9, "x": Runs()}, protocol))
    told = refusal(str(path))
    assert told is not None and "a program that asks for posix.system" in told
    said = protocol if protocol >= 2 else 0
    assert f"bare pickle (protocol {said})" in told and told.endswith("nothing executed")
    path.write_bytes(pickle.dumps([1.0], protocol))
    assert ("which is a program" in (refusal(str(path)) or "")) == (protocol >= 2)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, this is no checkpoint at all",
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03." * 9,
        b"\x80\x02\x8a\nl\xfc",  # the same, cut
        b"\x80\x04\x95\x0d\x00\x00\x00\x00\x00\x00\x00\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(99),
    ],
)
def test_what_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(content)
    assert refusal(str(path)) is None
