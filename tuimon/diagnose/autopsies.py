"""Autopsies as the report has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tuimon.model.autopsy import LEAF, Autopsy, ModuleState, OpSite, PoisonedLeaf, TensorNote
from tuimon.model.text import plain
from tuimon.model.verdict import sentence, where

MAX_AUTOPSIES = 16  # a training publishes three
_STATE = "non-finite-optimizer-state"


def in_order(autopsies: Iterable[Autopsy]) -> list[Autopsy]:
    """As they happened, but for the state of an optimizer: it may lie about for long unnoticed."""
    return sorted(autopsies, key=lambda each: each.trigger == _STATE)


def entry(autopsy: Autopsy) -> dict[str, Any]:
    """One autopsy as plain data."""
    return {
        "step": autopsy.step,
        "rank": autopsy.rank,
        "trigger": autopsy.trigger,
        "engine": autopsy.engine,
        "verdict": autopsy.verdict,
        "text": sentence(autopsy),
        "first": _first(autopsy),
        "leaves": [_leaf(each) for each in autopsy.leaves],
        "path": [plain(f"{each.op} in {where(each)}") for each in autopsy.path],
        "upstream": list(autopsy.upstream),
        "modules": [_module(each) for each in autopsy.modules if _is_bad(each)],
        "constants": list(autopsy.constants),
        "optimizer": autopsy.optimizer or None,
        "loss_scale": autopsy.loss_scale,
        "bad_at_scale_1": autopsy.bad_at_scale_1,
        "recorded_loss": autopsy.recorded_loss,
        "rerun_loss": autopsy.rerun_loss,
        "notes": [plain(note) for note in autopsy.notes],
        "duration_s": autopsy.duration_s,
    }


def _first(autopsy: Autopsy) -> dict[str, Any] | None:
    """The first bad operation; for a poisoned leaf the place that met it, and no operation."""
    site = autopsy.first
    if site is None:
        return None
    is_leaf = autopsy.verdict == LEAF
    return {
        "op": None if is_leaf else site.op,
        "met_by": site.op if is_leaf else None,
        **_place(site),
        "inputs": [_tensor(each) for each in site.inputs],
        "outputs": [_tensor(each) for each in site.outputs],
    }


def _place(site: OpSite) -> dict[str, Any]:
    return {
        "phase": site.phase,
        "module": site.module,
        "in_model": site.in_model,
        "file": site.file,
        "line": site.line,
        "source": plain(site.source),
        "function": plain(site.function),
        "node": site.node or None,
    }


def _tensor(note: TensorNote) -> dict[str, Any]:
    return {
        "name": plain(note.name),
        "shape": list(note.shape),
        "dtype": note.dtype,
        "min": note.minimum,
        "max": note.maximum,
        "nan": note.nan,
        "posinf": note.posinf,
        "neginf": note.neginf,
        "zeros": note.zeros,
    }


def _leaf(leaf: PoisonedLeaf) -> dict[str, Any]:
    return {
        "kind": leaf.kind,
        "samples": list(leaf.samples),
        "bad_samples": max(leaf.bad_samples, len(leaf.samples)) or None,
        **_tensor(leaf.tensor),
    }


def _is_bad(state: ModuleState) -> bool:
    return bool(state.forward_bad or state.backward_bad or state.parameter_bad)


def _module(state: ModuleState) -> dict[str, Any]:
    return {
        "module": state.module,
        "type": state.type_name,
        "forward": state.forward_bad,
        "backward": state.backward_bad,
        "parameter": state.parameter_bad,
    }
