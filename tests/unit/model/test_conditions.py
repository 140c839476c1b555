"""The grammar of breakpoints: what is written is read back, and nothing else gets through."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.model.conditions import (
    GRAD,
    HOLDERS,
    KINDS,
    LOSS,
    MEASURES,
    QUANTITIES,
    RELATIONS,
    And,
    Compare,
    Condition,
    Contains,
    Layer,
    Not,
    Or,
    covers,
    judge,
    written,
)
from tuimon.model.parsing import MAX_DEPTH, MAX_LENGTH, BadCondition, grammar, parse, problem

PATTERNS = st.text(string.ascii_letters + string.digits + "._*?[] äπ'", min_size=1, max_size=12)
NUMBERS = st.floats(allow_nan=False)
RELATION = st.sampled_from(sorted(RELATIONS))
COMPARE = st.builds(
    lambda quantity, relation, value, group: Compare(
        quantity, relation, value, group if quantity == "lr" else 0
    ),
    st.sampled_from(sorted(QUANTITIES)), RELATION, NUMBERS, st.integers(0, 9999),
)  # fmt: skip
CONTAINS = st.one_of(
    st.builds(Contains, st.sampled_from(sorted(KINDS)), st.sampled_from(HOLDERS), PATTERNS),
    st.builds(Contains, st.sampled_from(sorted(KINDS)), st.just(LOSS)),
)
LAYER = st.sampled_from(
    [(what, measure) for what, measures in MEASURES.items() for measure in measures]
).flatmap(
    lambda pair: st.builds(Layer, st.just(pair[0]), PATTERNS, st.just(pair[1]), RELATION, NUMBERS)
)


def _more(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(parts.map(Not), several.map(And), several.map(Or))


CONDITIONS = st.recursive(st.one_of(COMPARE, CONTAINS, LAYER), _more, max_leaves=5)


@pytest.mark.parametrize("typed", ["1000", "1e9", "-2e6", "123456", "0.25", "1e-8"])
def test_numbers_stay_as_short_as_they_are_typed(typed: str) -> None:
    assert written(parse(f"grad_norm > {typed}")).endswith(typed.replace("1e-8", "1e-08"))


@given(CONDITIONS)
def test_what_is_written_is_read_back(condition: Condition) -> None:
    text = written(condition)
    if len(text) <= MAX_LENGTH:
        assert parse(text) == condition
        assert problem(f"  {text}\t") == ""


WORDS = [*QUANTITIES, *KINDS, *MEASURES, *RELATIONS, "lr/1", "in", "and", "or", "not", "(", ")"]
WORDS += ['"*"', "'a.b'", '"', "1e3", "-inf", "nan", "absmax", "ratio", "norm", "1e999", "\x1b"]
SPOILED = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


@given(st.one_of(st.text(max_size=60), SPOILED, st.text(string.printable, max_size=40)))
def test_any_text_is_a_condition_or_the_one_error(text: str) -> None:
    try:
        condition = parse(text)
    except BadCondition as error:
        assert 1 <= error.column <= len(text) + 1
        assert str(error).isprintable()
    else:
        assert parse(written(condition)) == condition


def test_the_examples() -> None:
    assert parse("grad_norm > 1e3 and step > 100") == And(
        (Compare("grad_norm", ">", 1000.0), Compare("step", ">", 100.0))
    )
    assert parse('nan in "blocks.3.*"') == Contains("nan", GRAD, "blocks.3.*")
    assert parse("output 'encoder.4' absmax>1e4") == Layer(
        "output", "encoder.4", "absmax", ">", 1e4
    )
    tight = parse("not step > 1 and loss < 2 or lr/1 == 0")
    assert tight == Or(
        (
            And((Not(Compare("step", ">", 1.0)), Compare("loss", "<", 2.0))),
            Compare("lr", "==", 0.0, 1),
        )
    )
    told = [line.replace("NUMBER", "1").split("|") for line, _ in grammar()[:-3]]
    for first, *others in told:  # "a|b > 1" stands for "a > 1" and "b > 1"
        ends = [each.split(maxsplit=1) for each in (first, *others)]
        tail = ends[-1][1] if others else ""
        head = first.rsplit(maxsplit=1)[0] if others else ""
        words = [first.split()[-1], *others[:-1], ends[-1][0]] if others else []
        for each in [f"{head} {word} {tail}" for word in words] or [first]:
            assert problem(each) == "", each


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 1, "one of step, loss"),
        ("grad_norm", 10, "one of > <"),
        ("grad_norm >", 12, "a number"),
        ("grad_norm > abc", 13, "a number"),
        ("grad_norm > 1 step > 2", 15, "and, or, or the end"),
        ("gradnorm > 1", 1, "grad_norm"),
        ("loss > nan", 8, "a number"),
        ("nan on loss", 5, "in"),
        ("nan in blocks", 8, "a pattern"),
        ('nan in ""', 8, "not empty"),
        ('nan in "blocks', 8, "a closing quote"),
        ('output "a" norm > 1', 12, "absmax or mean"),
        ("(loss > 1", 10, "and, or, or )"),
        ("loss > 1e999", 8, "a number that fits"),
        ("__import__('os')", 1, "one of"),
        ("loss; 1", 5, "a word"),
        ("not " * 40 + "loss > 1", 69, f"at most {MAX_DEPTH} levels"),
        ("(" * 400 + "loss > 1", 18, f"at most {MAX_DEPTH} levels"),
        ("loss > 1 or " * 41 + "loss > 1", 385, "at most 32"),
        ("x" * 501, 501, "at most 500 characters"),
        ("nan in '\x1b[2J'", 8, "printable"),
    ],
)
def test_what_is_wrong_is_told_with_its_column(text: str, column: int, expected: str) -> None:
    with pytest.raises(BadCondition, match=f"column {column}: expected ") as caught:
        parse(text)
    assert expected in str(caught.value)


class Known:
    """Readings from a dictionary."""

    def __init__(self, **values: float | None) -> None:
        self.values = values

    def value(self, quantity: str, group: int) -> float | None:
        return self.values.get(quantity)

    def layers(self, test: Layer) -> list[tuple[str, float]] | None:
        return [("a", 1.0), ("b", 5.0), ("c", 7.0)] if test.what == "output" else None

    def holders(self, test: Contains) -> list[str] | None:
        return ["blocks.3.w"] if test.kind == "nan" else []


@pytest.mark.parametrize(
    ("text", "holds", "seen"),
    [
        ("grad_norm > 1e3", True, ("grad_norm = 1,532",)),
        ("grad_norm > 1e3 and step > 100", True, ("grad_norm = 1,532",)),
        ("grad_norm > 1e3 and step > 200", False, ()),
        ("loss > 0", False, ()),  # a NaN compares as false
        ("not loss > 0", True, ()),
        ("loss != 0", True, ("loss = NaN",)),
        ("lr > 0", None, ()),
        ("not lr > 0", None, ()),
        ("lr > 0 and step > 100", None, ()),
        ("lr > 0 and step > 200", False, ()),
        ("lr > 0 or step > 100", True, ()),
        ('update "*" ratio > 0', None, ()),
        ('nan in "blocks.*"', True, ("NaN in blocks.3.w",)),
        ('inf in "blocks.*"', False, ()),
        ('output "*" absmax > 4', True, ("output b absmax = 5 and 1 more",)),
    ],
)
def test_verdicts(text: str, holds: bool | None, seen: tuple[str, ...]) -> None:
    found = judge(parse(text), Known(step=118, grad_norm=1532.0, loss=math.nan))
    assert found.holds is holds
    assert found.seen == seen


@pytest.mark.parametrize(
    ("pattern", "name", "is_covered"),
    [
        ("*", "a.b", True), ("a", "a", True), ("a", "a.b.c", True), ("a", "ab", False),
        ("a.*", "a.b.c", True), ("a.*", "a", False), ("a.?.w", "a.3.w", True),
        ("*.w", "a.3.w", True), ("*.w", "a.3.weight", False), ("a**w", "a.w", True),
        ("*b*c", "abbc", True), ("[a]", "a", False), ("[a]", "[a]", True),
        ("*a" * 200, "a" * 60_000, True), ("*a" * 200 + "b", "a" * 3000, False),
    ],
)  # fmt: skip
def test_patterns(pattern: str, name: str, is_covered: bool) -> None:
    assert covers(pattern, name) is is_covered
