"""How fast a checkpoint is scanned: against reading it once, and against a loop of plain torch.

    python -m tests.bench.bench_scan

A checkpoint of each dtype is written as safetensors and by torch.save. All ways take turns in one
run, each in a process of its own, with the file in the page cache: what is compared is work, not
the disk. Seconds are those of the processor, the least of all rounds, which neighbours disturb
least. Memory is the growth of the peak while the file is read, with the pages of a mapped file; for
files of torch that of the process that reads them. Never a gate.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PIECE_BYTES = 1 << 19  # as a scan reads
REPEATS = 3  # within a process

# Each way is a program that gets the path and prints seconds and bytes.
_BEGIN = f"""
import json, os, sys, time
from pathlib import Path
path, reader = sys.argv[1], os.getpid()
piece = bytearray({PIECE_BYTES})
def peak():
    lines = Path(f"/proc/{{reader}}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
def read_once():
    with open(path, "rb", buffering=0) as file:
        while file.readinto(piece):
            pass
"""
_END = f"""
def used():
    # Of another process: its clock is made from its pid, as clock_getcpuclockid does.
    other = 0 if reader == os.getpid() else time.clock_gettime((~reader << 3) | 2)
    return time.process_time() + other
read_once()  # what a process touches first is slow for all of them
start, began = peak(), used()
for _ in range({REPEATS}):
    way()
print(json.dumps({{"s": (used() - began) / {REPEATS}, "peak": peak() - start}}))
"""
READ_ONCE = "way = read_once"
SCAN = """
from tuimon.inspect.scan import Scanner
from tuimon.inspect.places import Place
scanner = Scanner()
if path.endswith(".pt"):
    reader = scanner._reader._started().pid
def way():
    scanned = scanner.scan(Place(Path(path)))
    assert scanned.error is None and not scanned.unhealthy(None), scanned.error
"""
# What a person writes: the same figures, tensor by tensor.
TORCH = """
import torch
from safetensors import safe_open
torch.set_num_threads(1)
def tensors():
    if path.endswith(".pt"):
        yield from torch.load(path, weights_only=True, mmap=True).values()
    else:
        file = safe_open(path, "pt")
        yield from (file.get_tensor(name) for name in file.keys())
def way():
    for tensor in tensors():
        tensor = tensor.float()
        nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
        absmax, rms = float(tensor.abs().max()), float(tensor.square().mean().sqrt())
        zeros = float((tensor == 0).sum()) / tensor.numel()
        assert not nan and not inf
"""

WAYS = {"read once": READ_ONCE, "tuimon scan": SCAN, "loop of torch": TORCH}


def write(folder: Path, size_bytes: int, dtype: str) -> dict[str, Path]:
    """A checkpoint of matrices of one dtype, in both formats."""
    import torch
    from safetensors.torch import save_file

    kind = getattr(torch, dtype)
    side = 2048
    count = max(1, size_bytes // (side * side * kind.itemsize))
    torch.manual_seed(0)
    made = {f"layers.{i}.weight": torch.randn(side, side).to(kind) for i in range(count)}
    paths = {"safetensors": folder / f"{dtype}.safetensors", "torch.save": folder / f"{dtype}.pt"}
    save_file(made, paths["safetensors"])
    torch.save(made, paths["torch.save"])
    return paths


def timed(way: str, path: Path) -> dict[str, float]:
    """Seconds and bytes of one way."""
    program = _BEGIN + WAYS[way] + _END
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        env=environ,
    )
    if done.returncode:
        sys.exit(f"{way}, {path.name}: {done.stderr.strip().splitlines()[-1]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of each checkpoint")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float8_e4m3fn"])
    options = parser.parse_args()
    print("| checkpoint | way | processor | GB/s | × reading once | memory |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for dtype in options.dtypes:
            for form, path in write(Path(name), options.mib << 20, dtype).items():
                found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
                timed("read once", path)  # into the page cache
                for _ in range(options.rounds):
                    for way in WAYS:
                        found[way].append(timed(way, path))
                report(f"{dtype}, {form}", path.stat().st_size, found)
                path.unlink()


def report(what: str, size: int, found: dict[str, list[dict[str, float]]]) -> None:
    """One row for each way."""
    once = min(each["s"] for each in found["read once"])
    for way, figures in found.items():
        took = min(each["s"] for each in figures)
        peak = max(each["peak"] for each in figures) / 2**20
        print(
            f"| {what}, {size / 2**20:.0f} MiB | {way} | {took:.2f} s | {size / took / 1e9:.2f} "
            f"| {took / once:.1f} | {peak:.0f} MiB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
