"""The report of a run, schema `tuimon.report/1`: built from what is known, told as strict JSON.

Strict means that every parser reads it: non-finite numbers are the strings "NaN", "+Inf" and
"-Inf", and there are no lone surrogates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tuimon.diagnose import autopsies, trials
from tuimon.diagnose.accounts import amp_section
from tuimon.diagnose.engine import Engine
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.joined import Joined
from tuimon.diagnose.outcome import outcome
from tuimon.model.commands import title_words
from tuimon.model.ledger import FINAL_STATES, arguments_of, iso
from tuimon.model.records import CommandState, Symptom
from tuimon.model.snapshots import SnapshotState
from tuimon.model.text import plain
from tuimon.model.units import json_number

SCHEMA = "tuimon.report/1"


@dataclass(frozen=True)
class RunFacts:
    """What the report says about the run itself.

    Attributes:
        steps: attempted updates of the primary optimizer.
        exit_kind: "ok" | "exception" | "killed" | "stopped"; "running" or "unrecorded" where the
            end is not known.
        overhead_frac: tuimon's own share of the step time; None when it was not measured.
        lost: records that did not arrive, by reason.
    """

    id: str
    name: str
    argv: Sequence[str]
    steps: int
    ranks: int
    exit_kind: str
    exit_code: int | None
    exit_detail: str
    overhead_frac: float | None = None
    lost: dict[str, int] = field(default_factory=dict)
    commands: Sequence[CommandState] = ()
    snapshots: SnapshotState | None = None


def build_report(run: RunFacts, engine: Engine | Joined) -> dict[str, Any]:
    """The report as plain data that `json.dumps(…, allow_nan=False)` accepts."""
    crashes = [entry for entry in [engine.scene.entry()] if entry is not None]
    document = {
        "schema": SCHEMA,
        "run": {
            "id": run.id,
            "name": run.name,
            "argv": list(run.argv),
            "steps": run.steps,
            "ranks": run.ranks,
            "exit": {
                "kind": run.exit_kind,
                "code": run.exit_code,
                "detail": plain(run.exit_detail),
            },
        },
        "outcome": outcome(
            exit_kind=run.exit_kind,
            exit_code=run.exit_code,
            symptoms=engine.symptoms,
            findings=engine.findings,
            unrecovered=engine.unrecovered(),
            amp_verdict=engine.amp.verdict,
        ),
        "symptoms": [_symptom(symptom) for symptom in once_a_step(engine.symptoms)],
        "findings": [_finding(finding) for finding in engine.findings],
        "autopsies": [autopsies.entry(each) for each in engine.autopsies] + crashes,
        "trials": trials.entries(engine.findings, engine.trials),
        "amp": amp_section(engine.amp),
        "interventions": interventions(run.commands),
        "cost": {"overhead_frac": run.overhead_frac, "snapshots": _snapshots(run.snapshots)},
        "lost": {"records": sum(run.lost.values()), "reasons": dict(run.lost)},
    }
    strict: dict[str, Any] = _strict(document)
    return strict


def interventions(commands: Iterable[CommandState]) -> list[dict[str, Any]]:
    """The ledger: one entry a command; one that was never applied has expired with the run."""
    return [
        {
            "command": state.command,
            "words": plain(state.words, 200) or title_words(state.command),
            "by": state.by,
            "asked_at": iso(state.asked_at_s),
            "state": state.state if state.state in FINAL_STATES else "expired",
            "step": state.step,
            "old": state.old,
            "new": state.new,
            "arguments": arguments_of(state),
            "reason": plain(state.reason),
        }
        for state in commands
    ]


def text_of(document: dict[str, Any]) -> str:
    """The file: strict JSON, with escapes in place of what a terminal would obey."""
    return _harmless(json.dumps(document, allow_nan=False, ensure_ascii=False, indent=1)) + "\n"


def _harmless(text: str) -> str:
    """The same JSON with escapes in place of what a terminal that is shown the file would obey."""
    return "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
    )


def once_a_step(symptoms: Iterable[Symptom]) -> list[Symptom]:
    """One entry for each kind, step and rank: the last, which a detector tells when it is worse."""
    return list({(each.kind, each.step, each.rank): each for each in symptoms}.values())


def _snapshots(state: SnapshotState | None) -> dict[str, Any] | None:
    """What copies of the healthy state have cost; None where none were asked for."""
    if state is None:
        return None
    return {
        "every": state.every,
        "healthy_step": state.step,
        "took_s": state.took_s,
        "of_a_step_frac": state.share_frac,
        "held_bytes": state.held_bytes,
        "unable": plain(state.unable),
    }


def _symptom(symptom: Symptom) -> dict[str, Any]:
    return {
        "kind": symptom.kind,
        "step": symptom.step,
        "rank": symptom.rank,
        "severity": symptom.severity,
        "detail": plain(symptom.detail),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {"id": finding.id, **msgspec.to_builtins(finding)}


def _strict(value: Any) -> Any:
    """The same data with words for non-finite numbers and without lone surrogates."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_strict(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return value
