"""Minutes of other people's imports: these tests run only for who asks for them by their mark."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "frameworks" in config.option.markexpr:
        return
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="takes minutes; run it by: -m frameworks"))
