"""Remedies as code: every name of torch's in them exists."""

from __future__ import annotations

import ast
import functools

import torch
from torch import nn

import tuimon
from tuimon.model.explained import EXPLAINED

KNOWN = {"torch": torch, "nn": nn, "F": nn.functional, "tuimon": tuimon}


def dotted(node: ast.Attribute) -> list[str]:
    parts: list[str] = []
    each: ast.expr = node
    while isinstance(each, ast.Attribute):
        parts.append(each.attr)
        each = each.value
    return [each.id, *reversed(parts)] if isinstance(each, ast.Name) else []


def test_names_of_torch_in_remedies_exist() -> None:
    seen = 0
    for slug, entry in EXPLAINED.items():
        for node in ast.walk(ast.parse(entry.code)):
            names = dotted(node) if isinstance(node, ast.Attribute) else []
            if names and names[0] in KNOWN:
                functools.reduce(getattr, names[1:], KNOWN[names[0]])
                seen += 1
            assert (
                not isinstance(node, ast.Constant)
                or node.value is not ...
                or "with" in (entry.code)
            ), slug
    assert seen > 20
