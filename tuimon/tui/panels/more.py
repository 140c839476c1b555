"""The line below the charts that tells which others lie out of sight, and how to get there."""

from __future__ import annotations

from tuimon.tui.draw.chart import label_of
from tuimon.tui.draw.rows import Row, data, spread, text
from tuimon.tui.scene import Scene
from tuimon.tui.screens import CHART_PREFIX


class MorePanel:
    """How many charts lie above and below those in sight, by name."""

    name = "more"
    can_focus = False
    rest_s = 0.0

    def key(self, scene: Scene) -> object:
        """Changes with the charts out of sight."""
        return scene.charts.unseen

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """One row; the names give way, the numbers stay."""
        look, (above, below) = scene.look, scene.charts.unseen
        row: Row = []
        for mark, charts in ((look.glyphs.above, above), (look.glyphs.below, below)):
            if charts:
                row.append(text(look, f" {mark} {len(charts)} more ", "key", bold=True))
                row.append(data(look, f"{_names(charts)} ", "dim"))
        return [spread(look, [row], [[text(look, "tab j k", "key"), text(look, " ")]], width)]


def _names(charts: tuple[str, ...]) -> str:
    return ", ".join(label_of(name.removeprefix(CHART_PREFIX)).split(", ")[0] for name in charts)
