"""The post-mortem as one HTML file: nothing is fetched, nothing runs, everything can be read
without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

from tuimon.export import pictures, story
from tuimon.export.elements import group, markup, tag
from tuimon.export.parting import Parting
from tuimon.export.postmortem import PostMortem
from tuimon.export.story import Section, Table

# A page that is sent may not reach out: no script, and pictures only from within.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root{color-scheme:light dark;--ink:#1c2128;--soft:#626c78;--paper:#fff;--line:#d8dde3;
--s0:#2f6fb0;--s1:#b5651d;--s2:#4b8b3b;--s3:#8a4fa3;--s4:#a0522d;--s5:#2a8c8c;--s6:#777;--s7:#b03060;
--bad:#c2185b;--warn:#b26a00;--good:#2e7d32}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#97a1ae;--paper:#14181d;--line:#333b45;
--s0:#6ea8e0;--s1:#e0a060;--s2:#8fcf7f;--s3:#c79be0;--bad:#ff6fa0;--warn:#f0b050;--good:#80d080}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:1000px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:2.5rem 0 .5rem}h2{font-size:1.15rem;margin:2rem 0 .4rem;
border-bottom:1px solid var(--line)}h3{font-size:1rem;margin:.8rem 0 .2rem}
.outcome{display:inline-block;padding:.1rem .6rem;border:2px solid;border-radius:.4rem;
font-weight:700}.diverged,.crashed{color:var(--bad)}.unhealthy,.stalled{color:var(--warn)}
.healthy{color:var(--good)}
pre{background:color-mix(in srgb,var(--ink) 7%,transparent);padding:.6rem;overflow:auto;
border-radius:.4rem}
table{border-collapse:collapse;font-size:.9rem;display:block;overflow:auto}
th,td{text-align:left;padding:.15rem .7rem .15rem 0;border-bottom:1px solid var(--line);
vertical-align:top}
svg{width:100%;height:auto;display:block;margin:.3rem 0}
svg text{font:11px system-ui,sans-serif;fill:var(--ink)}svg .name{font-weight:700}
svg .tick{fill:var(--soft)}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .bad{fill:var(--bad)}
svg .mono{font-family:ui-monospace,monospace}svg .letter{fill:#fff;font-weight:700}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:1.5}.band{opacity:.25;stroke:none}
.nan{fill:#c2185b}.inf{fill:#d9640f}.event{stroke:var(--bad);stroke-dasharray:3 3}
.command{stroke:var(--s3);stroke-dasharray:1 3;stroke-width:2}.bars rect{fill:var(--s0)}
.histograms{display:grid;grid-template-columns:repeat(auto-fit,minmax(280px,1fr));gap:0 1rem}
.histograms h3{grid-column:1/-1;font-family:ui-monospace,monospace}
.legend .key{margin-right:.8rem;font-size:.85rem}.chip{display:inline-block;width:1em;height:1em;
margin-right:.3em;vertical-align:-2px;border:1px solid var(--line)}
.note,footer{color:var(--soft);font-size:.85rem}
""" + "".join(
    f".line.s{n}{{stroke:var(--s{n})}}.band.s{n},.dot.s{n},.key.s{n}{{fill:var(--s{n})}}"
    for n in range(8)
)


def page(runs: Sequence[PostMortem], parting: Parting | None = None, *, written_at_s: float) -> str:
    """The report of a run; of two, with where they part.

    Args:
        runs: one or two.
        parting: what `parting.compare` says of two.
        written_at_s: unix time that the page says it is from.
    """
    title = " and ".join(each.title for each in runs)
    body: list[Element | str | None] = []
    if parting is not None:
        body.append(tag("h1", f"{title}: where they part"))
        body += [_section(each) for each in parting.sections()]
        names = [each.title for each in runs]
        if len(set(names)) < len(names):  # the same script twice
            names = [str(each.document["run"]["id"]) for each in runs]
        of = " of rank 0 alone" if any(story.has_ranks(each.document) for each in runs) else ""
        body += _titled(f"Both runs{of}", pictures.together([each.frame for each in runs], names))
    for each in runs:
        body += _run(each)
    when = datetime.fromtimestamp(written_at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    body.append(tag("footer", f"Written by tuimon at {when}. The numbers are in the JSON report."))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="viewport", content="width=device-width"),
        tag("title", f"tuimon: {title}"),
    )
    sheet = Element("style")
    sheet.text = STYLE
    head.append(sheet)
    return "<!doctype html>\n" + markup(tag("html", head, group("body", body), lang="en")) + "\n"


def _run(run: PostMortem) -> list[Element | str | None]:
    document, outcome = run.document, str(run.document.get("outcome", "unknown"))
    badge = tag("span", outcome, class_=f"outcome {outcome}")
    verdict = story.verdict(document)
    parts: list[Element | str | None] = [tag("h1", f"{run.title} ", badge)]
    parts += [tag("p", each) for each in verdict.text]
    told = story.sections(document)
    lead = [each for each in told if each.title.startswith(("Cause", "The operation"))]
    parts += [_section(each) for each in lead]
    of = f" of rank {run.recording.rank or 0} alone" if story.has_ranks(document) else ""
    parts += _titled(f"The run{of and ': the charts'}{of}", pictures.charts(run.frame))
    parts += _titled(
        f"Layers{of}: gradient norms beside what is usual for each", pictures.layers(run.frame)
    )
    parts += _titled(f"Histograms{of}", pictures.histograms(run.frame, _accused(run), _failed(run)))
    parts += [_section(each) for each in told if each not in lead]
    parts.append(_section(story.environment(document, *surroundings(run))))
    return parts


def surroundings(run: PostMortem) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Versions, and what else the recording says of where the run was."""
    info, facts = run.info, run.frame.facts
    more = []
    if info is not None:
        begun = datetime.fromtimestamp(info.started_at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        more += [("host", info.host), ("begun", begun), ("folder", info.cwd)]
    if facts is not None:
        names = (("model", facts.modules), ("optimizer", facts.optimizers))
        more += [(name, ", ".join(each)) for name, each in names]
        more += [("device", ", ".join(facts.devices)), ("GradScaler", facts.scaler or "")]
    if run.rebuilt:
        more.append(("verdict", "made from the recording, by the rules of this version"))
    return (dict(info.versions) if info is not None else {}), more


def _accused(run: PostMortem) -> list[str]:
    """Parameters and modules that findings name."""
    places = [each.get("where") or {} for each in run.document.get("findings") or []]
    named = [each["param"] for each in places if each.get("param")]
    names = run.frame.layers.names if run.frame.layers is not None else []
    for each in places:
        if each.get("module"):
            named += [name for name in names if name.startswith(f"{each['module']}.")]
    return named


def _failed(run: PostMortem) -> int | None:
    """The first step of which something critical was seen."""
    seen = [each for each in run.document.get("symptoms") or [] if each["severity"] == "critical"]
    return min((each["step"] for each in seen if each.get("step") is not None), default=None)


def _titled(title: str, parts: Sequence[Element]) -> list[Element]:
    return [tag("h2", title), *parts] if parts else []


def _section(section: Section) -> Element:
    parts: list[Element | str | None] = [tag("h2", section.title)]
    parts += [tag("p", each) for each in section.text if each]
    if section.points:
        parts.append(group("ul", [tag("li", each) for each in section.points]))
    if section.code:
        parts.append(tag("pre", tag("code", section.code)))
    parts.append(_table(section.table) if section.table is not None else None)
    return group("section", parts)


def _table(table: Table) -> Element:
    head = tag("tr", *[tag("th", each) for each in table.head])
    rows = [tag("tr", *[tag("td", each) for each in row]) for row in table.rows]
    return tag("table", tag("thead", head), group("tbody", rows))
