"""Synthetic incidents: an autopsy of a log of 0, a crash on a label, findings, a GradScaler."""

from __future__ import annotations

from dataclasses import replace

from tests.tui.fake import FakeRun, FakeSeries
from tuimon.model.amp import AmpCalls, AmpSkip, Headroom
from tuimon.model.autopsy import (
    LEAF,
    OPERATION,
    Autopsy,
    ModuleState,
    OpSite,
    PoisonedLeaf,
    TensorNote,
)
from tuimon.model.batches import TensorSummary
from tuimon.model.crash import CodePlace, Crash
from tuimon.model.findings import FindingRecord
from tuimon.model.records import Event
from tuimon.model.trials import TrialRecord
from tuimon.model.verdict import sentence
from tuimon.view.frame import HELD, Amp, Frame

STEP = 147
NOW_S = 1_700_000_000.0
LINE = "loss = -(onehot[idx] * torch.log(prob)).sum(-1).mean()"


def _site(op: str, *, inputs: list[TensorNote], outputs: list[TensorNote]) -> OpSite:
    return OpSite(op, in_model=False, file="/project/train.py", line=24, source=LINE,
                  function="main", inputs=inputs, outputs=outputs)  # fmt: skip


_PROB = TensorNote("prob", [64, 3], "float32", 0.0, 1.0, numel=192, zeros=3)
_LOG = TensorNote("", [64, 3], "float32", -87.3, 0.0, neginf=3, numel=192)
_PRODUCT = TensorNote("", [64, 3], "float32", -4.1, 0.0, nan=3, numel=192)
_LOSS = TensorNote("", [], "float32", nan=1, numel=1)

AUTOPSY = Autopsy(
    STEP,
    int((NOW_S - 590) * 1e9),
    trigger="non-finite-loss",
    engine="M+G",
    verdict=OPERATION,
    first=_site("aten::log", inputs=[_PROB], outputs=[_LOG]),
    path=[
        _site("aten::log", inputs=[_PROB], outputs=[_LOG]),
        _site("aten::mul", inputs=[_LOG], outputs=[_PRODUCT]),
        _site("aten::sum", inputs=[_PRODUCT], outputs=[_PRODUCT]),
        _site("aten::mean", inputs=[_PRODUCT], outputs=[_LOSS]),
    ],
    modules=[
        ModuleState("", "Sequential", False, True, False),
        ModuleState("0", "Linear", False, True, False),
        ModuleState("1", "ReLU", False, True, None),
        ModuleState("2", "Linear", False, True, False),
        ModuleState("norm", "LayerNorm", False, False, False),
    ],
    notes=["the batch was drawn again from the recorded random state"],
    duration_s=0.312,
    recorded_loss=float("nan"),
    rerun_loss=float("nan"),
)

LEAF_AUTOPSY = Autopsy(
    STEP,
    int((NOW_S - 590) * 1e9),
    trigger="non-finite-loss",
    engine="M",
    verdict=LEAF,
    first=OpSite("aten::linear", module="encoder.0", file="/project/net.py", line=9,
                 source="return self.fc(x)", inputs=[], outputs=[_LOSS]),
    leaves=[
        PoisonedLeaf("batch", TensorNote("batch[0]", [32, 8], "float32", -3.1, 3.4, nan=1,
                                         numel=256), [17])
    ],
)  # fmt: skip

FINDINGS = (
    FindingRecord("f2", "lr-too-high", confidence=0.31, status="refuted", step=STEP),
    FindingRecord("f1", "log-zero", "critical", 0.97, "confirmed", STEP,
                  evidence=["prob held 3 exact zeros"]),
)  # fmt: skip

TRIALS = (
    TrialRecord("f1", "log-zero", "log is given 1e-12 where it got 0", "confirmed",
                "loss 4.2 instead of NaN", STEP, op="aten::log"),
    TrialRecord("f2", "lr-too-high", "learning rate divided by 10", "refuted",
                "the loss is NaN as before", STEP),
    TrialRecord("f9", "exp-overflow", "exp is given 80 at most", "refuted", "", STEP),
)  # fmt: skip

CRASH = Crash(
    STEP,
    int((NOW_S - 580) * 1e9),
    kind="IndexError",
    message="Target 10 is out of bounds.",
    phase="forward",
    place=CodePlace("/project/train.py", 41, "main", "loss = F.cross_entropy(logits, y)"),
    frames=[
        CodePlace("/project/train.py", 88, "<module>", "main()"),
        CodePlace("/project/train.py", 41, "main", "loss = F.cross_entropy(logits, y)"),
    ],
    op="aten::nll_loss_nd",
    library="torch/nn/functional.py:3458",
    inputs=[
        TensorSummary("logits", [32, 10], "float32", looked_at=320, nan=0, low=-2.1, high=3.3),
        TensorSummary("y", [32], "int64", looked_at=32, low=0.0, high=10.0),
    ],
)


def incident_frame(autopsy: Autopsy = AUTOPSY, **changes: object) -> Frame:
    """A run of 160 steps whose loss became NaN at step 147, with its autopsy."""
    run = FakeRun(steps=160, blocks=2, incident=True)
    frame = run.frame(step=STEP, total_steps=300)
    symptom = Event(STEP, NOW_S - 589, "critical", "non-finite-loss", "loss is NaN")
    events = (*(each for each in frame.events if each.severity != "critical"), symptom)
    frame = replace(frame, events=events, alert=symptom, autopsies=(autopsy,))
    return replace(frame, **changes)  # type: ignore[arg-type]


def held_frame(**changes: object) -> Frame:
    """The same run, held before the update."""
    frame = incident_frame()
    hold = Event(STEP, NOW_S - 588, "critical", "hold", f"held before update {STEP}",
                 sentence(AUTOPSY))  # fmt: skip
    values: dict[str, object] = {"hold_left_s": 252.0, **changes}
    return replace(frame, state=HELD, events=(*frame.events, hold), **values)  # type: ignore[arg-type]


def amp_frame(**changes: object) -> Frame:
    """A GradScaler that found its scale after three overflows and lost it at the end."""
    run = FakeRun(steps=1600, blocks=2)
    skipped = FakeSeries("skipped", [1.0], first=1500)
    skips = tuple(
        AmpSkip(step, 0, scale, name, nan=0, posinf=12, neginf=3, numel=4096, tensors=count,
                measured=30, order="graph", loss_is_finite=True)
        for step, scale, name, count in (
            (0, 65536.0, "layers.1.mlp.down_proj.weight", 16),
            (1, 32768.0, "layers.1.mlp.down_proj.weight", 4),
            (1500, 8192.0, "lm_head.weight", 1),
        )
    )  # fmt: skip
    amp = Amp(
        4096.0, 3, 1600, 1500, 65536.0, "healthy", "", skips,
        AmpCalls(1600, 1600, 1597, unscales=1600, updates=1600, clipped_scaled=2,
                 first={"clipped_scaled": 7}, init_scale=65536.0, growth_factor=2.0,
                 backoff_factor=0.5, growth_interval=2000),
        Headroom("lm_head.weight", 31000.0, 1590), Headroom("layers.1.mlp", 512.0, 1590),
    )  # fmt: skip
    frame = run.frame(amp=amp)
    series = {**frame.series, "skipped": skipped}
    return replace(frame, series=series, **changes)  # type: ignore[arg-type]
