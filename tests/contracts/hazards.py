"""What can go wrong when a monitor sits in somebody's training, by number, and who proves it.

    python -m tests.contracts.hazards

A test names the hazards it proves with `@pytest.mark.hazard(2, 16)`. Those that no test of this
suite can prove stand in `ELSEWHERE` with the reason. Prints the list, one hazard a line.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

HAZARDS: dict[int, str] = {
    1: "a hook that returns a value replaces outputs or arguments",
    2: "an exception in a hook ends the training",
    3: "one update fires several hooks: subclasses, containers, wrappers, groups in turns",
    4: "a step that the GradScaler skips fires no hook",
    5: "a fused optimizer shows scaled gradients to hooks",
    6: "with a closure, gradients come after the hook before the step",
    7: "an optimizer runs inside backward",
    8: "clipping spreads one NaN over every gradient",
    9: "clipping switched off by an infinite bound turns Inf into NaN",
    10: "a norm overflows or underflows though its gradient is finite",
    11: "odd parameters: meta, empty, integer, sparse, complex, fp8, subclass, none",
    12: "a statistic of a distributed tensor issues a collective",
    13: "a rank holds an empty shard",
    14: "parameters are replaced by others",
    15: "after the all-reduce every rank looks guilty of one rank's NaN",
    16: "a hook reads a value and makes the device wait",
    17: "hooks run while a CUDA graph is captured",
    18: "hooks break a compiled graph, or are compiled themselves",
    19: "full backward hooks forbid in-place changes and slow everything",
    20: "scripting and tracing refuse hooks",
    21: "copies and files of a watched model carry the monitor along",
    22: "copied parameters lose their hooks",
    23: "tensors made in inference mode cannot be used later",
    24: "an evaluation counts as a step",
    25: "checkpointing runs forwards twice",
    26: "under function transforms nothing can be read",
    27: "replicas run hooks in other threads",
    28: "a statistic keeps a graph alive",
    29: "the script changed the default dtype or device",
    30: "forked data workers inherit sockets, locks and the monitor",
    31: "spawned children import the script again",
    32: "a pause swallows signals",
    33: "a thread of the monitor changes how the process ends",
    34: "a thread of the monitor takes the interpreter from the training",
    35: "a notebook cell watches again and again",
    36: "the monitor keeps a model alive",
    37: "a learning rate in a tensor is read",
    38: "a scheduler and an override of the learning rate disturb each other",
    39: "a roll back in the middle of a graph",
    40: "scaler and scheduler overwrite what was restored",
    41: "a command acts while the graph of another optimizer is alive",
    42: "an autopsy disturbs the run",
    43: "an autopsy waits for a collective",
    44: "an intended -Inf is accused",
    45: "a batch was changed after its forward",
    46: "the calibration of a loss scale is taken for an incident",
    47: "ranks apply a command at different steps",
    48: "the rank that decides dies while others wait",
    49: "a patch is left behind, made twice, or has a foreign one on top",
    50: "very short steps",
    51: "hooks on accumulated gradients slow down sharded training",
    52: "a captured gradient keeps large outputs alive",
}

ELSEWHERE: dict[int, str] = {
    17: "needs a GPU: tools/gpu_checks.py captures and replays a step",
    38: "there is no override of the learning rate yet",
    39: "there is no roll back yet",
    40: "there is no roll back yet",
}


def proofs() -> dict[int, list[str]]:
    """Number of a hazard -> the tests that carry it, as `file::test`."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        name = path.relative_to(TESTS.parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for number in _numbers(node.decorator_list):
                    found[number].append(f"{name}::{node.name}")
    return dict(found)


def _numbers(decorators: list[ast.expr]) -> list[int]:
    return [
        argument.value
        for decorator in decorators
        for call in ast.walk(decorator)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "hazard"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    ]


def main() -> None:
    """Print every hazard with its proofs."""
    proven = proofs()
    for number, what in HAZARDS.items():
        where = ", ".join(proven.get(number, [])) or f"— {ELSEWHERE.get(number, 'NO PROOF')}"
        print(f"{number:2}  {what}\n    {where}")


if __name__ == "__main__":
    main()
