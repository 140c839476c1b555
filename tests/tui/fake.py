"""A synthetic run that implements what the viewer draws: series, heat map, frame, session."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuimon.feed.samples import Samples
from tuimon.model.commands import AnyCommand
from tuimon.model.records import (
    NAN,
    CommandState,
    DeviceReading,
    Event,
    LayerTable,
    System,
)
from tuimon.model.samples import (
    HISTOGRAM_BINS,
    Activation,
    Activations,
    Governor,
    Histogram,
    ParameterSample,
    ParameterSamples,
)
from tuimon.view.frame import (
    ALL_ZERO,
    CELL_NAN,
    CELL_NEG_INF,
    CELL_POS_INF,
    HAS_FINITE,
    HAS_NAN,
    HAS_NEG_INF,
    HAS_POS_INF,
    LEVEL_LAST,
    LEVEL_USUAL,
    LIVE,
    NO_DATA,
    Amp,
    Clip,
    Envelope,
    Frame,
    Timing,
)

# Cell codes from least to most worth seeing.
RANK = np.array([0, 6, 4, 2, 1, 3, 5, 7, 8, 2, 10, 11, 12], np.uint8)


class FakeSeries:
    """A series over steps 0, 1, 2 … held as one plain array; slow and obviously right."""

    def __init__(self, name: str, values: Sequence[float] | np.ndarray, first: int = 0) -> None:
        self.name = name
        self.values = np.asarray(values, np.float32)
        self.first = first

    @property
    def version(self) -> int:
        return len(self.values)

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def first_step(self) -> int | None:
        return self.first if len(self.values) else None

    @property
    def last_step(self) -> int | None:
        return self.first + len(self.values) - 1 if len(self.values) else None

    @property
    def last(self) -> float | None:
        return float(self.values[-1]) if len(self.values) else None

    @property
    def _finite(self) -> np.ndarray:
        return self.values[np.isfinite(self.values)]

    @property
    def ema(self) -> float | None:
        state = None
        for value in self._finite[-400:].tolist():
            state = value if state is None else 0.98 * state + 0.02 * value
        return state

    @property
    def minimum(self) -> float | None:
        return float(self._finite.min()) if len(self._finite) else None

    @property
    def maximum(self) -> float | None:
        return float(self._finite.max()) if len(self._finite) else None

    def non_finite_near(self, step: int, *, forward: bool) -> int | None:
        is_bad = np.concatenate(([False], ~np.isfinite(self.values)))
        steps = np.flatnonzero(is_bad[1:] & ~is_bad[:-1]) + self.first
        found = steps[steps > step] if forward else steps[steps < step][::-1]
        return int(found[0]) if len(found) else None

    def envelope(self, first_step: int, end_step: int, columns: int) -> Envelope:
        low = np.full(columns, np.nan, np.float32)
        high, mean = low.copy(), low.copy()
        flags = np.zeros(columns, np.uint8)
        edges = [first_step + (end_step - first_step) * c / columns for c in range(columns + 1)]
        for column in range(columns):
            start = max(0, math.ceil(edges[column]) - self.first)
            end = max(0, math.ceil(edges[column + 1]) - self.first)
            part = self.values[start:end]
            if not len(part):
                continue
            finite = part[np.isfinite(part)]
            if len(finite):
                low[column], high[column], mean[column] = finite.min(), finite.max(), finite.mean()
                flags[column] |= HAS_FINITE
            flags[column] |= HAS_NAN if np.isnan(part).any() else 0
            flags[column] |= HAS_POS_INF if np.isposinf(part).any() else 0
            flags[column] |= HAS_NEG_INF if np.isneginf(part).any() else 0
        return Envelope(low, high, mean, flags)


class FakeHeat:
    """A heat map held as one array of codes [layers, steps]."""

    def __init__(self, codes: np.ndarray, first: int = 0) -> None:
        self.codes = codes.astype(np.uint8)
        self.first = first
        self.bucket = 1  # steps that a norm stands for

    def span_at(self, step: int) -> tuple[int, int]:
        start = step // self.bucket * self.bucket
        return start, start + self.bucket

    @property
    def version(self) -> int:
        return self.codes.shape[1]

    @property
    def first_step(self) -> int | None:
        return self.first if self.codes.shape[1] else None

    @property
    def last_step(self) -> int | None:
        return self.first + self.codes.shape[1] - 1 if self.codes.shape[1] else None

    def cells(
        self,
        groups: Sequence[Sequence[int]],
        first_step: int,
        end_step: int,
        columns: int,
        *,
        absolute: bool = False,
    ) -> np.ndarray:
        out = np.zeros((len(groups), columns), np.uint8)
        for column in range(columns):
            start = first_step + (end_step - first_step) * column // columns - self.first
            end = first_step + (end_step - first_step) * (column + 1) // columns - self.first
            part = self.codes[:, max(0, start) : max(0, end)]
            if not part.shape[1]:
                continue
            for row, members in enumerate(groups):
                block = part[list(members)].ravel()
                out[row, column] = block[RANK[block].argmax()]
        return out

    def ever_bad(self) -> np.ndarray:
        return (self.codes >= CELL_NEG_INF).any(axis=1)

    def first_bad(self) -> np.ndarray:
        bad = self.codes >= CELL_NEG_INF
        return np.where(bad.any(axis=1), bad.argmax(axis=1) + self.first, -1).astype(np.int64)

    def latest_away(self) -> np.ndarray:
        newest = self.codes[:, -1].astype(np.float32)
        usual = (newest > 0) & (newest <= LEVEL_LAST)
        return np.where(usual, newest - LEVEL_USUAL, np.nan).astype(np.float32)

    def norms(
        self, group: Sequence[int], first_step: int, end_step: int, columns: int
    ) -> tuple[np.ndarray, np.ndarray]:
        codes = self.cells([group], first_step, end_step, columns)[0]
        bits = np.where((codes > 0) & (codes < CELL_NEG_INF), HAS_FINITE, 0).astype(np.uint8)
        for code, bit in (
            (CELL_NAN, HAS_NAN), (CELL_POS_INF, HAS_POS_INF), (CELL_NEG_INF, HAS_NEG_INF)
        ):  # fmt: skip
            bits[codes == code] = bit
        sizes = 2.0 ** (codes.astype(np.float32) - LEVEL_USUAL)
        norms = np.where(bits == HAS_FINITE, sizes, np.nan)
        return norms.astype(np.float32), bits

    def latest_norm(self) -> np.ndarray:
        newest = self.codes[:, -1].astype(np.float32)
        return np.where(newest >= CELL_NEG_INF, np.nan, 2.0 ** (newest - LEVEL_USUAL)).astype(
            np.float32
        )

    def latest_flags(self) -> np.ndarray:
        return np.where(self.codes[:, -1] == CELL_NAN, NAN, 0).astype(np.uint8)


def layer_names(blocks: int) -> list[str]:
    """Parameters of a small transformer."""
    names = ["embed_tokens.weight"]
    for block in range(blocks):
        inner = ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj")
        names += [f"layers.{block}.{part}.weight" for part in inner]
        names += [f"layers.{block}.mlp.{part}.weight" for part in ("gate_proj", "down_proj")]
        names += [f"layers.{block}.norm1.weight"]
    return [*names, "norm.weight", "lm_head.weight"]


@dataclass
class FakeRun:
    """Makes frames of a run of `steps` steps; `strike` adds a NaN incident at its end."""

    steps: int = 18_200
    blocks: int = 24
    incident: bool = False
    seed: int = 7
    now_s: float = 1_700_000_000.0
    extra: dict[str, FakeSeries] = field(default_factory=dict)

    def frame(self, **changes: object) -> Frame:
        rng = np.random.default_rng(self.seed)
        loss, grad, scale = self._curves(rng)
        names = layer_names(self.blocks)
        heat = self._heat(rng, len(names))
        if self.incident:
            grad[-15:-12] = np.nan
            grad[-16] = np.inf
        events = self._events()
        frame = Frame(
            state=LIVE,
            run_id="9f3c",
            name="llama-1b-pretrain",
            host="gpu-07",
            pid=48213,
            rank=0,
            world_size=8,
            step=self.steps - 1 if self.steps else None,
            total_steps=50_000,
            steps_per_s=10.24,
            eta_s=3060.0,
            series={
                "loss": FakeSeries("loss", loss),
                "grad_norm": FakeSeries("grad_norm", grad),
                "loss_scale": FakeSeries("loss_scale", scale),
                **self.extra,
            },
            heat=heat,
            layers=LayerTable(
                1, names, shapes=[[64, 64]] * len(names), dtypes=["float32"] * len(names)
            ),
            system=self._system(),
            amp=Amp(8192.0, 17, max(1, self.steps), 16_300),
            clip=Clip("user", 1.0),
            lrs=(3e-4,),
            timing=Timing(0.0977, 0.004, 0.03, 0.05, 0.008, 0.0042),
            samples=self._samples(names),
            events=events,
            alert=events[-1] if self.incident else None,
            history_first_step=0 if self.steps else None,
        )
        return replace(frame, **changes)  # type: ignore[arg-type]

    def _samples(self, names: list[str]) -> Samples:
        """The first half of the layers has had its turn, one of them with a NaN in its outputs."""
        samples = Samples()
        samples.add(Governor(self.steps, 22, 0.004, 0.005))
        for index, name in enumerate(names[: len(names) // 2 + 2]):
            module = name.rpartition(".")[0]
            item = ParameterSample(name, 2.5e-4 * (index + 1), 0.036, 18.5, 3.1e-3, 4096)
            samples.add(ParameterSamples(1200 + index // 32, 0, [item]))
            bad = math.nan if index == 3 else 7.25
            seen = Activation(module, 1, 8192, 0.01, 0.58, bad, 0.125, 65504 / bad, "float16")
            samples.add(Activations(1184, [seen]))
            counts = np.zeros(2 * HISTOGRAM_BINS, "<u4")
            for bin_ in range(24, 44):
                share = max(1, 900 - 9 * (bin_ - 35) ** 2)
                counts[HISTOGRAM_BINS + bin_] = share
                counts[HISTOGRAM_BINS - 1 - bin_] = share // 2 + 1
            samples.add(
                Histogram(
                    1184, "weight", name, 4096, 4096, counts.tobytes(), zeros=3, nan=index == 3
                )
            )
        return samples

    def _curves(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        steps = np.arange(self.steps)
        loss = 2.05 + 7.5 * np.exp(-steps / 1800) + rng.normal(0, 0.05, self.steps)
        grad = 0.55 + 2.5 * np.exp(-steps / 500) + np.abs(rng.normal(0, 0.2, self.steps))
        scale = np.full(self.steps, 65536.0)
        for at in (4000, 9000, 12_000, 15_000):
            if at < self.steps:
                loss[at : at + 20] += 3.5
                grad[at] = 9.0
        for at in (6400, 11_500, 16_300):
            if at < self.steps:
                grad[at] = np.inf
                scale[at:] /= 2
        return loss, grad, scale

    def _heat(self, rng: np.random.Generator, layers: int) -> FakeHeat:
        steps = min(self.steps, 2000)
        codes = np.full((layers, steps), LEVEL_USUAL, np.uint8)
        if steps:
            codes[rng.random((layers, steps)) < 0.01] = LEVEL_USUAL + 1
            codes[rng.random((layers, steps)) < 0.004] = LEVEL_USUAL - 1
            codes[5, ::9] = ALL_ZERO
            codes[6, : steps // 2] = NO_DATA
        if self.incident and steps > 60:
            culprit = layers // 2
            for age, code in ((22, 5), (20, 6), (18, 7), (17, 8), (16, CELL_POS_INF)):
                codes[culprit, -age:] = code
            codes[:, -15:-12] = CELL_NAN
            codes[:, -12:] = LEVEL_USUAL
            codes[2, -14] = CELL_NEG_INF
        return FakeHeat(codes, self.steps - steps)

    def _system(self) -> System:
        gib = 2**30
        devices = [
            DeviceReading(i, "NVIDIA H200", memory_used_bytes=int((96.5 + i) * gib),
                          memory_total_bytes=141 * gib, utilisation_frac=0.97,
                          temperature_c=61.0, power_w=612.0)
            for i in range(2)
        ]  # fmt: skip
        return System(
            self.now_s, devices, host_cpu_frac=0.31, host_memory_used_bytes=61 * gib,
            host_memory_total_bytes=512 * gib, trainer_cpu_frac=1.02, trainer_rss_bytes=9 * gib,
        )  # fmt: skip

    def _events(self) -> tuple[Event, ...]:
        log = [
            (4003, "warning", "spike", "loss spike 8.1 sigma", "recovered after 30 steps"),
            (6400, "info", "amp-skip", "AMP overflow, step skipped", "scale 65,536 → 32,768"),
            (10_009, "info", "dump", "tensors written", "1.9 GiB in 6.2 s"),
            (11_465, "warning", "spike", "grad norm 14.2 (clip 1.0)", "largest: layers.3.attn"),
        ]  # fmt: skip
        if self.incident:
            log.append(
                (self.steps - 14, "critical", "non-finite-gradient", "NaN gradients in 163 layers",
                 "from layers.12.mlp.down_proj\nInf one step before, after growing 40×")
            )  # fmt: skip
        return tuple(
            Event(step, self.now_s - 600 + step / 100, severity, kind, words, detail)
            for step, severity, kind, words, detail in log
            if step < max(1, self.steps)
        )


class FakeSession:
    """A session whose frames the test sets; it answers every command by the book."""

    def __init__(self, frame: Frame) -> None:
        self.current = frame
        self.sent: list[AnyCommand] = []
        self.closed = False

    def tick(self) -> Frame:
        return self.current

    def send(self, command: AnyCommand) -> CommandState:
        self.sent.append(command)
        state = CommandState(f"id{len(self.sent)}", command.title, "accepted")
        self.current = replace(self.current, commands=(*self.current.commands, state))
        return state

    def close(self) -> None:
        self.closed = True
