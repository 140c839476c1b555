"""Elements of a page: what is text stays text, whatever it holds. Knows no run."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring

from tuimon.model.text import plain

Child = "Element | str | None"
LIMIT = 20_000  # characters of one text


def tag(name: str, *children: Element | str | None, **attributes: str | float) -> Element:
    """An element; strings are text, None is nothing. `class_` and `for_` lose their underscore.

    Underscores inside a name of an attribute become hyphens: `stroke_width`.
    """
    made = Element(
        name,
        {key.rstrip("_").replace("_", "-"): _value(each) for key, each in attributes.items()},
    )
    for child in children:
        if isinstance(child, str):
            _add_text(made, plain_lines(child))
        elif child is not None:
            made.append(child)
    return made


def group(name: str, children: Iterable[Element | str | None], **attributes: str) -> Element:
    """An element with a list of children."""
    return tag(name, *children, **attributes)


def markup(element: Element) -> str:
    """The element as HTML, with everything escaped that has to be."""
    return tostring(element, encoding="unicode", method="html")


def plain_lines(text: str) -> str:
    """Text without control characters, line by line."""
    return "\n".join(plain(line, LIMIT) for line in text[:LIMIT].split("\n"))


def _value(value: str | float) -> str:
    return plain(value, LIMIT) if isinstance(value, str) else f"{value:.6g}"


def _add_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text
