"""What copies of the healthy state cost, in the words of the panel."""

from __future__ import annotations

import pytest

from tuimon.model.snapshots import SnapshotState
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.device import snapshot_words


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (SnapshotState(50), " snap  every 50, none yet"),
        (SnapshotState(50, 100, 0.0032, 24 << 20, 0.08), " snap  3.2 ms/50 4% of a step 24.0 MiB"),
        (SnapshotState(50, 100, 0.0032, 24 << 20), " snap  3.2 ms/50 – of a step 24.0 MiB"),
        (SnapshotState(50, unable="no\x1b[1m room"), " snap  none: no�[1m room"),
    ],
)
def test_words(state: SnapshotState, words: str) -> None:
    assert "".join(each.text for each in snapshot_words(Look(), state)) == words
