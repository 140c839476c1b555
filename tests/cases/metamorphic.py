"""Writes trainings that differ in everything but their fault, and what must be said of each.

    python -m tests.cases.metamorphic FOLDER && python -m tests.cases.score FOLDER

Each fault is written in a plain form and then with one thing changed that must not matter: names,
order of layers, seed, width, optimizer, a DataLoader, a class around the loop, accumulation,
autocast. The verdict must be the same: operation, module, line, cause.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent
from typing import Any

BAD_STEP = 4
NON_FINITE = ["non-finite-loss", "non-finite-gradient", "non-finite-parameter"]


@dataclass(frozen=True)
class Fault:
    """A faulty expression of a hidden state H and a column F that is 1, and 0 in one sample."""

    slug: str
    expression: str
    phase: str
    ops: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """Everything around the fault."""

    title: str
    in_loss: bool = False
    is_late: bool = False
    names: tuple[str, str, str, str, str] = ("Net", "enter", "odd", "leave", "hidden")
    seed: int = 0
    width: int = 16
    optimizer: str = "torch.optim.Adam({}, lr=1e-3)"
    has_loader: bool = False
    in_class: bool = False
    accumulates: bool = False
    has_autocast: bool = False


FAULTS = (
    Fault("log-zero", "H + 0.1 * torch.log(F)", "forward", ("aten::log",)),
    Fault("div-zero", "H / (H * F).abs().sum(1, keepdim=True)", "forward", ("aten::div",)),
    Fault("exp-overflow", "H * torch.exp(200 * (1 - F))", "forward", ("aten::exp",)),
    Fault(
        "masked-softmax",
        'H * H.masked_fill(F < 0.5, float("-inf")).softmax(1)',
        "forward",
        ("aten::_softmax",),
    ),
    Fault(
        "sqrt-norm-zero",
        "H + (H * F).square().sum(1, keepdim=True).sqrt()",
        "backward",
        ("aten::sqrt", "aten::div", "SqrtBackward0"),
    ),
    Fault(
        "where-trap",
        "torch.where(F > 0, H / F, H)",
        "backward",
        ("aten::div", "DivBackward0"),
        ("div-zero",),
    ),
)
_PLAIN = Form("plain")
FORMS = (
    _PLAIN,
    replace(_PLAIN, title="in the loss", in_loss=True),
    replace(_PLAIN, title="late layer", is_late=True),
    replace(_PLAIN, title="names", names=("Tower", "stem", "gizmo", "readout", "features")),
    replace(_PLAIN, title="seed", seed=1234),
    replace(_PLAIN, title="width", width=37),
    replace(_PLAIN, title="sgd", optimizer="torch.optim.SGD({}, lr=0.01, momentum=0.9)"),
    replace(_PLAIN, title="rmsprop", optimizer="torch.optim.RMSprop({}, lr=1e-3)"),
    replace(_PLAIN, title="loader", has_loader=True),
    replace(_PLAIN, title="class", in_class=True),
    replace(_PLAIN, title="accumulation", accumulates=True),
    replace(_PLAIN, title="autocast", has_autocast=True),
)


def script(fault: Fault, form: Form) -> str:
    """The text of one training."""
    net, enter, odd, leave, hidden = form.names
    body = fault.expression.replace("H", hidden).replace("F", "flag")
    loss_hidden = "predicted" if form.in_loss else hidden
    faulty = f"return {fault.expression.replace('H', loss_hidden).replace('F', 'flag')}  # <- here"
    lines = ["import torch", "from torch import nn"]
    if form.has_loader:
        lines.append("from torch.utils.data import DataLoader")
    if form.in_loss:
        lines += ["", "", "def adjusted(predicted, flag):", indent(faulty, "    ")]
        inner = f"{hidden} = torch.tanh({hidden})"
    else:
        lines += ["", "", f"class {odd.title()}(nn.Module):"]
        lines += [f"    def forward(self, {hidden}, flag):", f"        return {body}  # <- here"]
        inner = f"{hidden} = self.{odd}({hidden}, flag)"
    lines += ["", "", f"class {net}(nn.Module):", "    def __init__(self):"]
    lines += ["        super().__init__()", f"        self.{enter} = nn.Linear(6, {form.width})"]
    if form.is_late:
        lines.append(f"        self.more = nn.Linear({form.width}, {form.width})")
    if not form.in_loss:
        lines.append(f"        self.{odd} = {odd.title()}()")
    lines += [f"        self.{leave} = nn.Linear({form.width}, 3)", "", "    def forward(self, x):"]
    lines += ["        flag = x[:, :1]", f"        {hidden} = torch.tanh(self.{enter}(x))"]
    if form.is_late:
        lines.append(f"        {hidden} = torch.tanh(self.more({hidden}))")
    lines += [f"        {inner}", f"        return self.{leave}({hidden})"]
    return "\n".join([*lines, "", "", *loop(form)]) + "\n"


def loop(form: Form) -> list[str]:
    """The loop over the batches, bare, or in a class."""
    rows = 12 * 24 * (2 if form.accumulates else 1)
    bad = (BAD_STEP * (2 if form.accumulates else 1)) * 24 + 5
    top = [f"torch.manual_seed({form.seed})", "torch.set_num_threads(1)"]
    top += [f"data = torch.randn({rows}, 6)", "data[:, 0] = 1.0", f"data[{bad}, 0] = 0.0"]
    top += [f"model = {form.names[0]}()"]
    top += [f"optimizer = {form.optimizer.format('model.parameters()')}"]
    batches = "DataLoader(data, batch_size=24)" if form.has_loader else "data.split(24)"
    model = "model(batch)"
    predicted = f"adjusted({model}, batch[:, :1])" if form.in_loss else model
    step = [f"loss = ({predicted}.float() - batch[:, 1:4]).square().mean()"]
    if form.has_autocast:
        step = ['with torch.autocast("cpu", dtype=torch.bfloat16):', *(f"    {s}" for s in step)]
    if form.accumulates:
        step += ["(loss / 2).backward()", "if number % 2 == 1:"]
        step += ["    optimizer.step()", "    optimizer.zero_grad()"]
    else:
        step += ["optimizer.zero_grad()", "loss.backward()", "optimizer.step()"]
    step.append("print(number, loss.item())")
    if not form.in_class:
        return [*top, f"for number, batch in enumerate({batches}):", *(f"    {s}" for s in step)]
    head = ["class Trainer:", "    def one(self, number, batch):"]
    tail = ["trainer = Trainer()", f"for number, batch in enumerate({batches}):"]
    return [
        *head,
        *(f"        {s}" for s in step),
        "",
        "",
        *top,
        *tail,
        "    trainer.one(number, batch)",
    ]


def truth(fault: Fault, form: Form, file: str) -> dict[str, Any]:
    """The entry of `expected.json`."""
    what = "gradient" if fault.phase == "backward" else "loss" if form.in_loss else "activation"
    return {
        "file": file,
        "accept": [fault.slug, *fault.also, "data-degenerate"],
        "outcome_accept": ["diverged", "unhealthy"],
        "symptoms_any": NON_FINITE,
        "first_non_finite": {"what": what, "step": BAD_STEP, "tolerance": 0},
        "op_accept": list(fault.ops),
        "phase": fault.phase,
        "module_accept": [""] if form.in_loss else [form.names[2]],
        "line_accept": "marked",
        "exception": None,
    }


def main(argv: list[str] | None = None) -> int:
    """Write every fault in every form."""
    parser = argparse.ArgumentParser(prog="python -m tests.cases.metamorphic")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    expected = {}
    for kind, fault in enumerate(FAULTS):
        for number, form in enumerate(FORMS):
            id_ = f"M{kind}{number:02}"
            file = f"{id_}_{form.title.replace(' ', '_')}.py"
            (folder / file).write_text(script(fault, form))
            expected[id_] = truth(fault, form, file)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{len(expected)} trainings in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
