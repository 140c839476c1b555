"""What others say about the same scripts: anomaly mode of autograd, and two rules on losses."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cases.corpus import run
from tests.cases.judged import plain_op
from tests.cases.symptoms import TenfoldMax, twice_the_mean
from tuimon.model.records import AnyRecord, Step, loss_of

_WRAPPER = Path(__file__).resolve().with_name("anomaly.py")
_NAMED = re.compile(r"Function '(\w+?)Backward\d*' returned nan values")


@dataclass(frozen=True)
class Anomaly:
    """What `torch.autograd.detect_anomaly` said: nothing, or an operation and a line."""

    op: str | None
    line: int | None


def anomaly(script: Path, kept: Path) -> Anomaly:
    """Run `script` in anomaly mode; its stderr is kept in a file and not asked for twice."""
    if not kept.exists():
        with tempfile.TemporaryDirectory() as name:
            ended = run([str(_WRAPPER), str(script)], Path(name))
        kept.write_bytes(ended.stderr)
    return anomaly_in(kept.read_text(errors="replace"), script.name)


def anomaly_in(stderr: str, script: str) -> Anomaly:
    """The node that raised, and the last line of the script in the traceback of its forward."""
    named = _NAMED.search(stderr)
    if named is None:
        return Anomaly(None, None)
    forward, _, _ = stderr.partition("Traceback (most recent call last)")
    _, mark, forward = forward.partition("Traceback of forward call that caused the error")
    lines = re.findall(rf'{re.escape(script)}", line (\d+)', forward) if mark else []
    return Anomaly(named[1], int(lines[-1]) if lines else None)


def names_operation(said: Anomaly, accept: Iterable[str | None]) -> bool:
    """Whether the node belongs to an accepted operation: `MseLoss` and `aten::mse_loss` do."""
    if said.op is None:
        return False
    return squeezed(said.op) in {squeezed(plain_op(name)) for name in accept if name is not None}


def squeezed(name: str) -> str:
    """A name without case, underscores and the ending of autograd's nodes."""
    return re.sub(r"Backward\d*$", "", name).replace("_", "").lower()


def rules(records: Iterable[AnyRecord]) -> dict[str, int | None]:
    """The step at which each rule on losses first raised its alarm; None for never."""
    mean, tenfold = twice_the_mean(), TenfoldMax()
    for record in records:
        loss = loss_of(record) if isinstance(record, Step) and record.optimizer == 0 else None
        if isinstance(record, Step) and loss is not None:
            mean.see(record.step, loss)
            tenfold.see(record.step, loss)
    return {"2x mean of 10": mean.first, "10x max of 100": tenfold.first}
