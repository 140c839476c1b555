"""The layer table in force and the heat that follows it from table to table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuimon.model.records import NO_GRAD, DeviceStats, LayerTable, Step
from tuimon.view.heat import Heat

PRIMARY = 0


class LayerHistory:
    """Norms of all layers over all steps; a layer keeps its row by name when the table changes."""

    def __init__(self) -> None:
        self.table: LayerTable | None = None
        self.heat: Heat | None = None
        self._owners: npt.NDArray[np.int64] | None = None  # with several optimizers only

    def adopt(self, table: LayerTable) -> None:
        """Take over a table with a newer epoch; others are repetitions."""
        if self.table is None or self.heat is None:
            self.heat = Heat(len(table.names))
        elif table.epoch > self.table.epoch:
            rows = {name: row for row, name in enumerate(self.table.names)}
            source = [rows.get(name, -1) for name in table.names]
            if source != list(range(self.heat.layers)):
                self.heat.remap(np.array(source, np.intp))
        else:
            return
        self.table = table
        owners = table.optimizer_index
        several = len(owners) == len(table.names) and len(set(owners) - {-1}) > 1
        self._owners = np.array(owners, np.int64) if several else None

    def add(self, record: Step | DeviceStats) -> str:
        """Take in the norms of one step.

        An optimizer that counts its own steps joins the newest step of the primary one, and
        speaks of its own layers only.

        Returns:
            Why they cannot be shown; "" when they are.
        """
        if not record.norms and not record.flags:
            return ""
        heat, table = self.heat, self.table
        if heat is None or table is None or record.epoch != table.epoch:
            return "no layer table"
        norms = np.full(heat.layers, np.nan, np.float32)
        flags = np.zeros(heat.layers, np.uint8)
        if record.norms:
            norms = np.frombuffer(record.norms[: len(record.norms) & ~3], "<f4")
        if record.flags:
            flags = np.frombuffer(record.flags, np.uint8)
        if len(norms) != heat.layers or len(flags) != heat.layers:
            return "layer mismatch"
        if self._owners is not None:
            foreign = (self._owners >= 0) & (self._owners != record.optimizer)
            flags = np.where(foreign, np.uint8(NO_GRAD), flags)
        if record.optimizer == PRIMARY:
            heat.append(record.step, norms, flags)
        else:
            heat.merge(0 if heat.last_step is None else heat.last_step, norms, flags)
        return ""

    def cut(self, step: int) -> None:
        """Forget `step` and everything after it."""
        if self.heat is not None:
            self.heat.cut(step)
