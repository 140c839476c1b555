"""A run without a training behind it, for what watches one: a process, its folder and its ring.

    python -m tests.bench.plain_run STEPS_PER_S LAYERS [STEPS]

Prints the id of its run and makes noisy steps; after STEPS, where they are given, it says goodbye
and ends.
"""

from __future__ import annotations

import itertools
import math
import sys
import time

import numpy as np

from tuimon.feed import registry
from tuimon.feed.codec import encode
from tuimon.feed.ring import RingWriter
from tuimon.model.records import RUNNING, AnyRecord, Goodbye, Hello, LayerTable, Step

RING_BYTES = 16 << 20
TABLE_EVERY_S = 5.0


def main() -> None:
    """Publish until the end, or until it is ended."""
    steps_per_s, layers = float(sys.argv[1]), int(sys.argv[2])
    info = registry.create_run(name="plain", argv=["plain.py"])
    ring = RingWriter.create(info.ring(), RING_BYTES, start_ticks=info.ranks[0].start_ticks)
    names = [f"layers.{at // 6}.part{at % 6}.weight" for at in range(layers)]
    table = LayerTable(1, names, shapes=[[64, 64]] * layers, dtypes=["float32"] * layers)
    ring.publish(encode(Hello(1, info.id, "plain", info.host, info.ranks[0].pid)))
    dice, begun_s, told_s = np.random.default_rng(0), time.monotonic(), -math.inf
    print(info.id, flush=True)
    steps = int(sys.argv[3]) if sys.argv[3:] else None
    for step in itertools.islice(itertools.count(), steps):
        if time.monotonic() - told_s > TABLE_EVERY_S:
            ring.publish(encode(table))
            told_s = time.monotonic()
        ring.publish(encode(_step(step, dice.normal(size=layers), 1 / steps_per_s)))
        ring.set_state(RUNNING, step)
        time.sleep(max(0.0, begun_s + (step + 1) / steps_per_s - time.monotonic()))
    ring.publish(encode(Goodbye("ok")))
    ring.close()


def _step(step: int, noise: np.ndarray, step_s: float) -> AnyRecord:
    loss = 2 + math.exp(-step / 300) * (1 + 0.05 * float(noise[0]))
    return Step(
        step,
        time.time_ns(),
        epoch=1,
        loss=loss,
        grad_norm=1 + 0.05 * float(noise[-1]),
        lrs=[1e-3],
        norms=np.exp2(0.4 * noise).astype("<f4").tobytes(),
        step_s=step_s,
    )


if __name__ == "__main__":
    main()
