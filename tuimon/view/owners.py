"""What an optimizer of several is called: by the model whose parameters it updates. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tuimon.model.records import LayerTable
from tuimon.model.text import plain


def owner_of(name: str, series: Mapping[str, object], table: LayerTable | None) -> str:
    """The owner of a series in a run of several optimizers; "" where there is one, or no telling.

    Args:
        name: of the series; that of a further optimizer ends in its number: "loss@1".
        series: all of the run.
    """
    if table is None or not any("@" in each for each in series):
        return ""
    digits = name.rpartition("@")[2] if "@" in name else "0"
    if not digits.isdigit():
        return ""
    index = int(digits)
    rows = zip(table.names, table.optimizer_index, strict=False)
    owned = [each for each, owner in rows if owner == index]
    roots = {each.partition(".")[0] for each in owned}
    others = {
        each.partition(".")[0]
        for each, owner in zip(table.names, table.optimizer_index, strict=False)
        if owner not in (index, -1)
    }
    if len(roots) == 1 and not roots & others:
        return plain(roots.pop(), 40)
    return f"of {len(owned):,} parameters" if owned else ""
