"""What a picture of a long run costs: frames against the length of the history and the layers.

    python -m tests.bench.bench_view

Interleaved medians of one process, for ratios; first what a run of a million steps of 300 layers
holds, in a process of its own. Never a gate.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from tuimon.model.records import LayerTable, Step
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.registry import make_panel
from tuimon.tui.scene import CHARTS, LAYERS, OVERVIEW, Scene
from tuimon.tui.screens import arrange
from tuimon.view.frame import LIVE
from tuimon.view.series import Series
from tuimon.view.store import RunState, Standing

SHORT, LONG = 10**4, 10**7
FEW, MANY = 300, 10_000
ROUNDS = 41
MEMORY_STEPS, MEMORY_RECORDS, MEMORY_LAYERS = 10**6, 10**4, 300
SIZE = (120, 40)
READ_S = 0.5  # what rests longer is no part of every frame


class Watched:
    """A run of so many steps and layers, and panels that draw it."""

    def __init__(self, steps: int, layers: int, *, records: int = 600) -> None:
        self.state = RunState()
        self.names = [f"layers.{at // 6}.part{at % 6}.weight" for at in range(layers)]
        self.state.apply(
            LayerTable(1, self.names, shapes=[[64, 64]] * layers, dtypes=["float32"] * layers)
        )
        rng = np.random.default_rng(0)
        for name in ("loss", "grad_norm", "lr", "step_s"):
            values = np.abs(rng.normal(size=steps)).astype(np.float32) + 1
            values[:: max(1, steps // 7)] = np.nan
            self.state.series[name] = Series(name)
            self.state.series[name].extend(np.arange(steps), values)
        self.step = steps
        self.norms = np.exp2(rng.normal(size=layers)).astype("<f4").tobytes()
        for _ in range(records):
            self.train()
        self.panels: dict[str, object] = {}
        self.scenes = {
            screen: Scene(self.frame(), Look(), screen=screen, focus="loss")
            for screen in (OVERVIEW, CHARTS, LAYERS)
        }

    def train(self) -> None:
        """One step more."""
        at = self.step
        self.state.apply(
            Step(at, at * 10**8, epoch=1, loss=1.0, grad_norm=1.0, lrs=[1e-3], norms=self.norms)
        )
        self.step += 1

    def frame(self):  # type: ignore[no-untyped-def]
        """The frame of this moment."""
        return self.state.frame(Standing(LIVE))

    def draw(self, screen: str, *, keep: float = 0.0, cross: bool = False) -> None:
        """One new step, then all panels of a screen but those that are drawn once a second."""
        self.train()
        scene = self.scenes[screen]
        scene.frame = self.frame()
        scene.charts.of("loss").keep = keep
        scene.charts.cross_step = self.step // 2 if cross else None
        for box in arrange(scene, *SIZE):
            panel = self.panels.get(box.panel)
            if panel is None:
                panel = self.panels[box.panel] = make_panel(box.panel)
            if panel.rest_s < READ_S:  # type: ignore[attr-defined]
                panel.draw(scene, box.width, box.height, False)  # type: ignore[attr-defined]


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def compare(what: str, one: Callable[[], object], other: Callable[[], object]) -> None:
    """Medians of both, interleaved, and their ratio."""
    one(), other()
    pairs = [(seconds(one), seconds(other)) for _ in range(ROUNDS)]
    first = statistics.median(pair[0] for pair in pairs)
    second = statistics.median(pair[1] for pair in pairs)
    print(f"{what:44} {first * 1e3:9.2f} {second * 1e3:9.2f} {second / first:7.2f}")


def frames() -> None:
    """Ratios of a long run to a short one, and of many layers to few."""
    short, long = Watched(SHORT, FEW), Watched(LONG, FEW)
    print(f"{'ms of processor a frame, 120×40':44} {SHORT:>9,} {LONG:>9,}   ratio")
    for screen in (OVERVIEW, CHARTS, LAYERS):
        compare(screen, lambda s=screen: short.draw(s), lambda s=screen: long.draw(s))
    compare(
        "charts, smoothed, with a crosshair",
        lambda: short.draw(CHARTS, keep=0.99, cross=True),
        lambda: long.draw(CHARTS, keep=0.99, cross=True),
    )
    many = Watched(SHORT, MANY)
    print(f"{'':44} {FEW:>9,} {MANY:>9,}   ratio")
    for screen in (OVERVIEW, LAYERS):
        compare(screen, lambda s=screen: short.draw(s), lambda s=screen: many.draw(s))


def memory() -> None:
    """The peak of a process that knows a million steps of 300 layers, and has drawn its screens.

    The last ten thousand steps come as records: by then both tiers of the map are full and folded.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watched = Watched(MEMORY_STEPS - MEMORY_RECORDS, MEMORY_LAYERS)
    begun = time.process_time()
    for _ in range(MEMORY_RECORDS):
        watched.train()
    took_s = time.process_time() - begun
    for screen in (OVERVIEW, CHARTS, LAYERS):
        watched.draw(screen)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{MEMORY_STEPS:,} steps of {MEMORY_LAYERS} layers: {after / 1024:.0f} MiB, "
        f"{before / 1024:.0f} MiB of them before the first; "
        f"{took_s / MEMORY_RECORDS * 1e6:.0f} µs of processor a step"
    )


def main() -> None:
    """Memory in a fresh process, then frames."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", action="store_true", help="no frames, and in this process")
    if parser.parse_args().memory:
        memory()
        return
    # First, for a child takes over the peak of its parent.
    subprocess.run([sys.executable, "-m", "tests.bench.bench_view", "--memory"], check=True)
    frames()


if __name__ == "__main__":
    main()
