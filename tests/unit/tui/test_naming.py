"""Names that do not fit stay different from each other."""

from __future__ import annotations

import pytest

from tuimon.tui.draw.naming import brief
from tuimon.tui.draw.theme import Look

_PARTS = (
    "attn.in_proj_weight", "attn.in_proj_bias", "attn.out_proj.weight", "attn.out_proj.bias",
    "mlp.0.weight", "mlp.2.weight", "ln1.weight", "ln2.weight", "attn.c_attn.weight",
    "attn.c_proj.weight",
)  # fmt: skip
NAMES = [f"transformer.blocks.{block}.{part}" for block in (0, 1, 11) for part in _PARTS]


@pytest.mark.parametrize("width", [18, 20, 24, 28, 33])
def test_no_two_layers_look_the_same(width: int) -> None:
    shown = [brief(Look(), name, width) for name in NAMES]
    assert len(set(shown)) == len(NAMES) and max(map(len, shown)) <= width


def test_modules_give_way_from_the_outside() -> None:
    name = "blocks.3.attn.in_proj_weight"
    assert brief(Look(), name, 28) == name
    assert brief(Look(), name, 24) == "b.3.attn.in_proj_weight"
    assert brief(Look(), name, 20) == "b.3.a.in_proj_weight"
    assert brief(Look(), name, 16) == "b.3.a.i…j_weight"
    assert brief(Look(), "a_name_without_any_dot", 11) == "a_nam…y_dot"
