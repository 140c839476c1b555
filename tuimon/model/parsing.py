"""Reads the condition of a breakpoint. A text that is none raises `BadCondition`, and nothing else.

The grammar, in which `not` binds tighter than `and`, and `and` tighter than `or`:

    condition = test | "not" condition | condition ("and" | "or") condition | "(" condition ")"
    test      = quantity relation number
              | kind "in" ("loss" | [holder] pattern)
              | layer-thing pattern measure relation number

A pattern stands in quotes. The words are those of `conditions`.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple, NoReturn

from tuimon.model.conditions import (
    GRAD,
    HOLDERS,
    KINDS,
    LAYER_WORDS,
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
)
from tuimon.model.text import plain

MAX_LENGTH = 500  # characters of a condition
MAX_DEPTH = 16  # parentheses and `not` inside each other
MAX_TESTS = 32
MAX_GROUP_DIGITS = 4

_TOKENS = re.compile(
    r"""(?P<blank>[ \t]+)
    |(?P<word>[A-Za-z_][A-Za-z_0-9]*(?:/[0-9]+)?)
    |(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]inf)
    |(?P<relation>>=|<=|==|!=|>|<)
    |(?P<bracket>[()])
    |(?P<pattern>"[^"]*"|'[^']*')""",
    re.VERBOSE,
)
_END = "the end"


class BadCondition(ValueError):
    """A text is no condition.

    Attributes:
        column: where, counted from 1.
        expected: what would have made sense there.
    """

    def __init__(self, column: int, expected: str, found: str) -> None:
        self.column = column
        self.expected = expected
        super().__init__(f"column {column}: expected {expected}, found {plain(found, 40)}")


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


def parse(text: str) -> Condition:
    """The condition that a text says.

    Raises:
        BadCondition: it says none; the message names the column and what was expected there.
    """
    if len(text) > MAX_LENGTH:
        raise BadCondition(MAX_LENGTH + 1, f"at most {MAX_LENGTH} characters", f"{len(text):,}")
    parser = _Parser(_tokens(text))
    condition = parser.either(0)
    if parser.now.kind != "end":
        parser.fail("and, or, or the end")
    return condition


def problem(text: str) -> str:
    """Why a text is no condition; "" when it is one."""
    try:
        parse(text)
    except BadCondition as error:
        return str(error)
    return ""


def grammar() -> list[tuple[str, str]]:
    """(what to write, what it means) for a person, most used first."""
    lines = [(f"{name} > NUMBER", meaning) for name, meaning in QUANTITIES.items()]
    lines += [
        ('nan in "LAYERS"', "a gradient of these layers holds a NaN; inf, non_finite likewise"),
        ("nan in loss", "and in " + ", in ".join(f'{each} "LAYERS"' for each in HOLDERS)),
    ]
    lines += [
        (f'{what} "LAYERS" {"|".join(MEASURES[what])} > NUMBER', meaning)
        for what, meaning in LAYER_WORDS.items()
    ]
    return [
        *lines,
        (" ".join(sorted(RELATIONS, key=len)), "how numbers compare; a NaN only by !="),
        ("and or not ( )", "put tests together"),
        ("LAYERS", "a layer, a module for all below it, or a pattern with * and ?"),
    ]


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            what = "a closing quote" if text[at] in "\"'" else "a word, a number or a relation"
            raise BadCondition(at + 1, what, repr(text[at]))
        if not match[0].replace("\t", " ").isprintable():
            raise BadCondition(at + 1, "printable characters", repr(match[0]))
        if match.lastgroup != "blank":
            found.append(_Token(match.lastgroup or "", match[0], at + 1))
        at = match.end()
    return [*found, _Token("end", _END, len(text) + 1)]


class _Parser:
    """Goes through the tokens once, from left to right."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._tests = 0

    @property
    def now(self) -> _Token:
        return self._tokens[self._at]

    def fail(self, expected: str) -> NoReturn:
        found = self.now.text if self.now.kind == "end" else repr(self.now.text)
        raise BadCondition(self.now.column, expected, found)

    def either(self, depth: int) -> Condition:
        parts = [self._both(depth)]
        while self._take_word("or"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while self._take_word("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} levels")
        if self._take_word("not"):
            return Not(self._one(depth + 1))
        if self.now.text == "(" and self.now.kind == "bracket":
            self._at += 1
            inner = self.either(depth + 1)
            if self.now.text != ")" or self.now.kind != "bracket":
                self.fail("and, or, or )")
            self._at += 1
            return inner
        self._tests += 1
        if self._tests > MAX_TESTS:
            self.fail(f"at most {MAX_TESTS} comparisons")
        return self._test()

    def _test(self) -> Condition:
        word, name = self.now, self.now.text
        base, _, group = name.partition("/")
        if word.kind == "word" and (name in QUANTITIES or (base == "lr" and group)):
            if len(group) > MAX_GROUP_DIGITS:
                self.fail("a param_group of at most four digits")
            self._at += 1
            relation, value = self._comparison()
            return Compare(base, relation, value, int(group or 0))
        if word.kind == "word" and name in KINDS:
            self._at += 1
            return self._contains(name)
        if word.kind == "word" and name in MEASURES:
            self._at += 1
            pattern = self._pattern("a pattern of layers in quotes")
            measure = self._word_of(MEASURES[name])
            relation, value = self._comparison()
            return Layer(name, pattern, measure, relation, value)
        self.fail(f"one of {', '.join((*QUANTITIES, *KINDS, *MEASURES))}, not, or (")

    def _contains(self, kind: str) -> Condition:
        if not self._take_word("in"):
            self.fail("in")
        if self._take_word(LOSS):
            return Contains(kind, LOSS)
        what = next((each for each in HOLDERS if self._take_word(each)), GRAD)
        return Contains(kind, what, self._pattern(f"loss, {', '.join(HOLDERS)} or a pattern"))

    def _comparison(self) -> tuple[str, float]:
        if self.now.kind != "relation":
            self.fail(f"one of {' '.join(sorted(RELATIONS, key=len))}")
        relation = self.now.text
        self._at += 1
        if self.now.kind != "number" and self.now.text != "inf":
            self.fail("a number")
        value = float(self.now.text)
        if math.isinf(value) and "inf" not in self.now.text:
            self.fail("a number that fits, or inf")
        self._at += 1
        return relation, value

    def _pattern(self, expected: str) -> str:
        if self.now.kind != "pattern":
            self.fail(expected)
        pattern = self.now.text[1:-1]
        if not pattern:
            self.fail('a pattern that is not empty, such as "*"')
        self._at += 1
        return pattern

    def _word_of(self, words: tuple[str, ...]) -> str:
        for word in words:
            if self._take_word(word):
                return word
        self.fail(" or ".join(words))

    def _take_word(self, word: str) -> bool:
        if self.now.kind == "word" and self.now.text == word:
            self._at += 1
            return True
        return False
