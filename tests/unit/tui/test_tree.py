"""The tree of layers: folding, filtering, finding."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.fake import FakeHeat, FakeRun, layer_names
from tuimon.model.records import LayerTable
from tuimon.tui.draw.ordering import next_order
from tuimon.tui.draw.theme import Look
from tuimon.tui.draw.tree import OPEN_BY_DEFAULT_ROWS, LayerTree
from tuimon.tui.scene import Scene
from tuimon.view.frame import CELL_NAN, LEVEL_USUAL, Frame


def tree_of(names: list[str]) -> LayerTree:
    """A tree that has just seen its first table."""
    tree = LayerTree()
    tree.set_names(names)
    return tree


def test_a_small_model_is_open_and_a_large_one_folded() -> None:
    small = tree_of(["0.weight", "0.bias", "2.weight", "2.bias"])
    assert [row.label for row in small.rows()] == ["0", "weight", "bias", "2", "weight", "bias"]
    large = tree_of(layer_names(24))
    assert len(large.rows()) <= OPEN_BY_DEFAULT_ROWS
    assert "layers.7" in [row.label for row in large.rows()]


def test_a_chain_of_single_children_is_one_row() -> None:
    assert [row.label for row in tree_of(["a.b.c.weight"]).rows()] == ["a.b.c.weight"]


def test_a_folded_row_stands_for_everything_below() -> None:
    names = layer_names(24)
    tree = tree_of(names)
    for row in tree.rows():
        if row.is_open is False:
            assert all(names[index].startswith(row.path) for index in row.members)


def test_fold_and_unfold() -> None:
    tree = tree_of(layer_names(24))
    index = next(i for i, row in enumerate(tree.rows()) if row.label == "layers.3")
    before = len(tree.rows())
    tree.fold("layers.3", open_it=True)
    assert len(tree.rows()) > before and tree.rows()[index].is_open
    assert tree.parent_of(index + 1) == index
    tree.fold("layers.3", open_it=False)
    assert len(tree.rows()) == before


def test_revealing_opens_everything_above() -> None:
    names = layer_names(24)
    tree = tree_of(names)
    wanted = names.index("layers.17.mlp.down_proj.weight")
    row = tree.reveal(wanted)
    assert tree.rows()[row].members == (wanted,)


def test_filter_is_a_regex_and_a_broken_one_is_plain_text() -> None:
    tree = tree_of(layer_names(4))
    tree.set_filter(r"\.(q|k)_proj")
    assert len(tree.rows()) == 8
    tree.set_filter("(q_proj")
    assert tree.rows() == []
    tree.set_filter("Q_PROJ")
    assert len(tree.rows()) == 4
    tree.set_filter("")
    assert len(tree.rows()) > 4


def test_only_bad_rows() -> None:
    tree = tree_of(["a", "b", "c"])
    tree.set_only_bad(True)
    assert tree.rows() == []
    tree.set_bad(np.array([False, True, False]))
    assert [row.label for row in tree.rows()] == ["b"]


def test_a_name_that_is_the_prefix_of_another_keeps_its_own_row() -> None:
    tree = tree_of(["block", "block.weight", "block.bias"])
    members = sorted(index for row in tree.rows() if row.is_open is None for index in row.members)
    assert members == [0, 1, 2]


@given(st.lists(st.from_regex(r"[ab]{1,2}(\.[ab01]{1,2}){0,4}", fullmatch=True), unique=True))
def test_every_parameter_is_below_exactly_one_outermost_row(names: list[str]) -> None:
    tree = tree_of(names)
    outer = [index for row in tree.rows() if row.depth == 0 for index in row.members]
    assert sorted(outer) == list(range(len(names)))
    for member in range(len(names)):
        row = tree.reveal(member)
        assert tree.rows()[row].members == (member,)


def test_sorted_rows_keep_the_selected_layer_and_follow_what_is_known() -> None:
    scene = Scene(FakeRun(steps=100, blocks=2, incident=True).frame(), Look(), screen="layers")
    assert scene.frame.layers is not None
    names = scene.frame.layers.names
    tree = scene.heat.tree
    tree.set_names(names)
    scene.heat.cursor = tree.reveal(names.index("layers.1.attn.q_proj.weight"))
    said = [next_order(scene) for _ in range(5)]
    assert said[0] == "layers: worst first" and said[-1] == "layers: modules"
    assert tree.rows()[scene.heat.cursor].path == "layers.1.attn.q_proj.weight"
    next_order(scene)
    next_order(scene)
    assert tree.order == "first bad"
    heat = scene.frame.heat
    assert heat is not None
    firsts = [heat.first_bad()[row.members[0]] for row in tree.rows()]
    assert firsts == sorted(firsts, key=lambda step: step if step >= 0 else 1 << 40)
    next_order(scene)
    norms = [heat.latest_norm()[row.members[0]] for row in tree.rows()]
    assert norms == sorted(norms, reverse=True)
    next_order(scene)
    assert [row.path for row in tree.rows()] == sorted(names)
    tree.set_filter("attn")
    assert all("attn" in row.path for row in tree.rows()) and len(tree.rows()) == 8


def test_ten_thousand_layers_are_sorted_and_filtered_at_once() -> None:
    names = [f"layers.{i // 10}.part{i % 10}.weight" for i in range(10_000)]
    codes = np.full((10_000, 60), LEVEL_USUAL, np.uint8)
    codes[7000, 30:] = CELL_NAN
    codes[42, 10:12] = CELL_NAN
    frame = replace(Frame(), heat=FakeHeat(codes), layers=LayerTable(1, names))
    scene = Scene(frame, Look(), screen="layers", focus="layers")
    scene.heat.tree.set_names(names)
    started_s = time.process_time()
    next_order(scene)
    assert scene.heat.tree.rows()[0].path == names[7000]  # it is bad now
    next_order(scene)
    assert [row.path for row in scene.heat.tree.rows()[:2]] == [names[42], names[7000]]
    scene.heat.tree.set_filter(r"\.part3\.")
    assert len(scene.heat.tree.rows()) == 1000
    for _ in range(3):
        next_order(scene)
    assert time.process_time() - started_s < 1.0  # some 50 ms where nothing else runs


def test_the_order_of_the_first_bad_says_the_step_and_who_ties() -> None:
    def told(*firsts: int | None) -> str:
        codes = np.full((3, 20), LEVEL_USUAL, np.uint8)
        for layer, first in enumerate(firsts):
            if first is not None:
                codes[layer, first:] = CELL_NAN
        names = ["a.weight", "b.weight", "c.weight"]
        frame = Frame(heat=FakeHeat(codes), layers=LayerTable(1, names))
        scene = Scene(frame, Look())
        scene.heat.tree.set_names(names)
        scene.heat.tree.order = "worst"
        return next_order(scene)

    assert told(7, 7, 7) == "layers: first bad first: all 3 at step 7, they tie"
    assert told(9, 7, 7) == "layers: first bad first: 2 of 3 tie at step 7"
    assert told(None, 7, 12) == "layers: first bad first: step 7"
    assert told(None, None, None) == "layers: first bad first: none was ever bad"
