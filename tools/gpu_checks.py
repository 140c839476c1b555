"""Checks that need a CUDA device: run once where there is one. Without one it says so.

    python tools/gpu_checks.py [--only NAME,…]

What does not depend on a device is checked on the CPU first, so that the script itself is known
to work before anybody carries it to a machine with a GPU. One line a check; ends with 1 when one
failed. The run folder is a temporary one, and no scribe is started.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

STEPS = 30


def net(device: str, width: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)).to(device)


@contextmanager
def watched(model: nn.Module, optimizer: Any, scaler: Any = None) -> Iterator[Any]:
    """Watch for the time of the block; gives a function that reads what was published."""
    import tuimon
    from tuimon.feed.codec import decode
    from tuimon.feed.ring import RingReader
    from tuimon.train.session import current_session

    monitor = tuimon.watch(model, optimizer, scaler)
    session = current_session()
    assert session is not None and session.info is not None
    reader = RingReader(session.info.ring())

    def records(kind: type) -> list[Any]:
        return [each for each in map(decode, reader.read(1_000_000, 30)) if isinstance(each, kind)]

    try:
        yield records
    finally:
        monitor.close()
        reader.close()


def steps(device: str, model: nn.Module, optimizer: Any, scaler: Any, count: int = STEPS) -> None:
    """A loop that clips and scales; with a disabled scaler it is a plain one."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(device)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


def optimizers(device: str) -> dict[str, Callable[[nn.Module], torch.optim.Optimizer]]:
    """Every way an update runs on a device."""
    kinds: dict[str, dict[str, Any]] = {
        "for-loop": {"foreach": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }
    if device == "cuda":
        kinds["capturable"] = {"capturable": True, "lr": torch.tensor(1e-3, device="cuda")}
    return {
        name: lambda model, options=options: torch.optim.AdamW(
            model.parameters(), **{"lr": 1e-3, **options}
        )
        for name, options in kinds.items()
    }


def scaler_of(device: str, amp: bool) -> Any:
    return torch.amp.GradScaler(device, init_scale=2.0**10, enabled=amp)


def the_same_numbers(device: str) -> None:
    """Weights and random streams bit for bit, with and without tuimon."""
    for name, make in optimizers(device).items():
        for amp in (False, True):
            left = []
            for watch in (False, True):
                model = net(device)
                optimizer, scaler = make(model), scaler_of(device, amp)
                if watch:
                    with watched(model, optimizer, scaler):
                        steps(device, model, optimizer, scaler)
                else:
                    steps(device, model, optimizer, scaler)
                state = [p.detach().cpu() for p in model.parameters()] + [torch.get_rng_state()]
                if device == "cuda":
                    state.append(torch.cuda.get_rng_state())
                left.append(state)
            equal = all(torch.equal(one, other) for one, other in zip(*left, strict=True))
            assert equal, f"{name}, amp={amp}: other numbers"


def norms_are_true(device: str) -> None:
    """The published norms against float64 on the host."""
    from tuimon.train.device import _reductions

    made = torch.Generator().manual_seed(2)
    plain = [torch.randn(n, generator=made) * 10.0**k for n, k in ((1, 0), (999, 3), (4097, -3))]
    here = [tensor.to(device) for tensor in plain]
    found = _reductions(here)
    for index, tensor in enumerate(plain):
        wide = tensor.double()
        for kind, true in enumerate((wide.norm(), wide.abs().max(), wide.max())):
            close = torch.isclose(found[kind][index].double().cpu(), true, rtol=1e-5)
            assert close, f"tensor {index}, kind {kind}: {found[kind][index]} is not {true}"


def nothing_waits(device: str) -> None:
    """With the device's own alarm on, no hook reads a value (hazards 16 and 37)."""
    from tuimon.model.records import DeviceStats, Event, RingLost, Step

    for name, make in optimizers(device).items():
        for amp in (False, True):
            # Without fusion the scaler reads a flag itself: that wait is the script's.
            if amp and name != "fused":
                continue
            model = net(device)
            optimizer, scaler = make(model), scaler_of(device, amp)
            with watched(model, optimizer, scaler) as records:
                steps(device, model, optimizer, scaler, 2)
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
                try:
                    steps(device, model, optimizer, scaler)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()
                steps(device, model, optimizer, scaler, 1)
                found = records(object)
            failed = [e for e in found if isinstance(e, Event) and e.kind.startswith("tap-")]
            assert not failed, f"{name}, amp={amp}: {[event.text for event in failed]}"
            late = sum(isinstance(each, DeviceStats) for each in found)
            lost = sum(each.count for each in found if isinstance(each, RingLost))
            made = sum(isinstance(each, Step) for each in found)
            assert made == STEPS + 3 and late > 0, f"{name}: {made} steps, {late} late"
            assert made - late - lost <= 1, f"{name}: {made} steps, {late} late, {lost} lost"


def a_host_that_runs_ahead(device: str) -> None:
    """Behind a long kernel every slot is in flight: samples are dropped and counted."""
    from tuimon.model.records import DeviceStats, RingLost, Step

    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = scaler_of(device, False)
    with watched(model, optimizer) as records:
        torch.cuda._sleep(2_000_000_000)
        steps(device, model, optimizer, scaler, 20)
        torch.cuda.synchronize()
        steps(device, model, optimizer, scaler, 2)
        torch.cuda.synchronize()
        found = records(object)
    late = [each for each in found if isinstance(each, DeviceStats)]
    lost = sum(each.count for each in found if isinstance(each, RingLost))
    assert sum(isinstance(each, Step) for each in found) == 22
    assert lost > 0, "nothing was dropped: the host did not run ahead, or it waited"
    assert len(late) + lost >= 20


def slots_are_pinned(device: str) -> None:
    """A copy that converts, or into pageable memory, would wait."""
    from tuimon.train.device import CudaOperations

    slot = CudaOperations(torch.device("cuda", 0)).pinned(16)
    assert slot.is_pinned() and slot.dtype is torch.float32


def a_captured_graph(device: str) -> None:
    """Capturing and replaying a whole step with the monitor attached (hazard 17)."""
    from tuimon.model.records import Event

    model = net(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(32, 64, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    with watched(model, optimizer) as records:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        first = loss.item()
        for _ in range(50):
            graph.replay()
        torch.cuda.synchronize()
        assert loss.item() < first, "the replayed step does not train"
        assert not [e for e in records(Event) if e.kind.startswith("tap-")]


def what_it_costs(device: str) -> None:
    """A/B by turns on one model: reported, never failing."""
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(24))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(256, 2048, device=device)

    def timed() -> float:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(20):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began_s) / 20

    timed()
    bare, seen = [], []
    for _ in range(5):
        bare.append(timed())
        with watched(model, optimizer):
            timed()
            seen.append(timed())
    ratio = statistics.median(seen) / statistics.median(bare)
    print(
        f"     bare {statistics.median(bare) * 1e3:.2f} ms a step, watched {ratio:.3f} times that"
    )


ANYWHERE = (the_same_numbers, norms_are_true)
ON_A_DEVICE = (
    the_same_numbers,
    norms_are_true,
    slots_are_pinned,
    nothing_waits,
    a_host_that_runs_ahead,
    a_captured_graph,
    what_it_costs,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of checks, with commas")
    wanted = set(filter(None, parser.parse_args().only.split(",")))
    torch.set_num_threads(1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TUIMON_DIR=folder, XDG_STATE_HOME=folder, TUIMON_SCRIBE="0")
        for device, checks in (("cpu", ANYWHERE), ("cuda", ON_A_DEVICE)):
            if device == "cuda" and not torch.cuda.is_available():
                print("no GPU here: the checks above are those that any machine can make")
                break
            for check in checks:
                if wanted and check.__name__ not in wanted:
                    continue
                try:
                    check(device)
                    print(f"ok   {device} {check.__name__}", flush=True)
                except Exception:
                    failed += 1
                    print(f"FAIL {device} {check.__name__}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
