"""`tuimon explain`: what a cause is, why it happens and what helps, as text."""

from __future__ import annotations

import difflib
import textwrap

import click

from tuimon.errors import TuimonError
from tuimon.model.explained import EXPLAINED
from tuimon.model.text import plain

_WIDTH = 88


class NoSuchCause(TuimonError):
    """The word is no cause of the taxonomy."""

    exit_code = 2


def explain(slug: str | None) -> int:
    """Print one cause, or all of them with their titles.

    Raises:
        NoSuchCause: there is none of that name.
    """
    if slug is None:
        width = max(map(len, EXPLAINED))
        for name, each in EXPLAINED.items():
            click.echo(f"{name:<{width}}  {each.title}")
        return 0
    entry = EXPLAINED.get(slug)
    if entry is None:
        words = slug.lower().replace("_", "-").replace(" ", "-")
        near = difflib.get_close_matches(words, EXPLAINED, 3)
        near += [name for name in EXPLAINED if set(words.split("-")) & set(name.split("-"))]
        near = list(dict.fromkeys(near))
        hint = f"; did you mean {', '.join(near[:3])}?" if near else ""
        raise NoSuchCause(f"no cause {plain(slug, 40)!r}{hint}; `tuimon explain` lists them")
    click.echo(f"{slug}: {entry.title}\n")
    for text in filter(None, (entry.what, entry.why, entry.remedy)):
        click.echo(textwrap.fill(text, _WIDTH) + "\n")
    if entry.code:
        click.echo(textwrap.indent(entry.code, "    "))
    return 0
