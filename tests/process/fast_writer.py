"""A stand-in for a training of very short steps: a real process, run folder and ring. No torch.

    python fast_writer.py STEPS STEPS_PER_S LAYERS CAPACITY_BYTES

Prints the id of its run, begins when a line comes in, and writes as fast as it can where the rate
is 0. A spike, a NaN and both infinities stand at the steps that `extremes` names. At the end it
prints how many seconds the steps took, and waits for stdin to close.
"""

from __future__ import annotations

import math
import sys
import time

from tuimon.feed import registry
from tuimon.feed.codec import encode
from tuimon.feed.ring import RingWriter
from tuimon.model.records import RUNNING, Hello, LayerTable, Step

SPIKE = 777.0


def extremes(steps: int) -> dict[int, float]:
    """What is not usual, by step."""
    values = (SPIKE, math.nan, math.inf, -math.inf)
    return {steps * (at + 1) // 9 + at: values[at % 4] for at in range(8)}


def main() -> None:
    steps, rate, layers, capacity = (int(word) for word in sys.argv[1:])
    info = registry.create_run(name="fast", argv=["fast.py"])
    ring = RingWriter.create(info.ring(), capacity, start_ticks=info.ranks[0].start_ticks)
    ring.publish(encode(Hello(1, info.id, "fast", info.host, info.ranks[0].pid)))
    ring.publish(encode(LayerTable(epoch=1, names=[f"layer.{at}" for at in range(layers)])))
    print(info.id, flush=True)
    sys.stdin.readline()
    odd = extremes(steps)
    norms = b"\0\0\x80?" * layers
    begun = time.perf_counter()
    for step in range(steps):
        loss = odd.get(step, 1.0)
        ring.publish(encode(Step(step, time.time_ns(), epoch=1, loss=loss, norms=norms)))
        ring.set_state(RUNNING, step)
        ahead = begun + (step + 1) / rate - time.perf_counter() if rate else 0.0
        if ahead > 0:
            time.sleep(ahead)
    print(time.perf_counter() - begun, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
