"""A crash in the report: the step that was being prepared, its place, what stood there."""

from __future__ import annotations

import json

from tuimon.diagnose.crashes import LAST_STEPS, crash_in_words
from tuimon.diagnose.engine import Engine
from tuimon.diagnose.report import RunFacts, build_report
from tuimon.feed.codec import decode, encode
from tuimon.model.batches import TensorSummary
from tuimon.model.crash import CodePlace, Crash, MemoryFigures
from tuimon.model.records import DeviceStats, Goodbye, Step, Symptom

PLACE = CodePlace("train.py", 22, "main", "loss = criterion(net(x), y)")
LABELS = TensorSummary("y (target)", [32], "int64", low=1.0, high=6.0, nan=0, looked_at=32)
CRASH = Crash(
    step=3,
    time_ns=0,
    kind="IndexError",
    message="Target 6 is out of bounds.",
    phase="forward",
    place=PLACE,
    frames=[PLACE],
    module="head.1",
    module_type="Linear",
    in_model=True,
    op="aten::nll_loss_nd",
    inputs=[LABELS],
)


def exceptions(*records: object) -> list[Symptom]:
    engine = Engine()
    for record in records:
        engine.see(record)  # type: ignore[arg-type]
    engine.close()
    return [symptom for symptom in engine.symptoms if symptom.kind == "exception"]


def test_the_symptom_has_the_step_of_its_scene():
    goodbye = Goodbye("exception", 1, "IndexError: Target 6 is out of bounds.", step=2)
    (symptom,) = exceptions(Step(2, 0), CRASH, goodbye)
    assert (symptom.step, symptom.severity) == (3, "critical")
    for words in ("IndexError: Target 6", "head.1 (Linear)", "train.py:22", "int64 [32] 1 … 6"):
        assert words in symptom.detail
    # Also without a look at its scene, and where the process died before its last word.
    assert exceptions(Step(2, 0), goodbye)[0].step == 2
    assert exceptions(Step(2, 0), CRASH)[0].step == 3
    assert exceptions(Goodbye("exception", 1, "ValueError: no"))[0].step is None
    assert exceptions(Step(2, 0), Goodbye("ok", 0)) == []


def test_the_report_has_the_scene_as_an_autopsy_without_engine():
    engine = Engine()
    for n in range(LAST_STEPS + 2):
        engine.see(Step(n, 0, loss=float(n), grad_norm=1.0, late=n == 3))
    engine.see(DeviceStats(LAST_STEPS + 1, grad_norm=7.0))
    engine.see(CRASH)
    run = RunFacts("i", "n", [], 10, 1, "exception", 1, "IndexError: Target 6 is out of bounds.")
    document = build_report(run, engine)
    json.dumps(document, allow_nan=False)
    (entry,) = document["autopsies"]
    assert (entry["step"], entry["engine"], entry["exception"]["kind"]) == (3, "", "IndexError")
    first = entry["first"]
    assert (first["op"], first["phase"], first["module"]) == (
        "aten::nll_loss_nd",
        "forward",
        "head.1",
    )
    assert (first["file"], first["line"]) == ("train.py", 22)
    (operand,) = first["inputs"]
    assert (operand["name"], operand["shape"], operand["dtype"]) == ("y (target)", [32], "int64")
    assert (operand["min"], operand["max"]) == (1.0, 6.0)
    assert entry["path"] == ["train.py:22 `loss = criterion(net(x), y)`"]
    assert [each["step"] for each in entry["last_steps"]] == list(range(2, LAST_STEPS + 2))
    assert entry["last_steps"][-1]["grad_norm"] == 7.0
    assert build_report(run, Engine())["autopsies"] == []


def test_memory_in_words():
    host = MemoryFigures("host", asked_bytes=1 << 40, allocated_bytes=1 << 30)
    text = crash_in_words(Crash(0, 0, kind="MemoryError", memory=[host], out_of_memory=True))
    assert text == "MemoryError; host: 1.0 TiB asked for, 1.0 GiB in use"


def test_the_record_survives_the_wire():
    assert decode(encode(CRASH)) == CRASH
