"""The batches that were looked at: a list, and what one of them held against those before."""

from __future__ import annotations

from collections.abc import Sequence

from tuimon.model.records import Batch
from tuimon.model.text import plain
from tuimon.model.units import DASH, count
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, shortened, text, thumb_of
from tuimon.tui.panels.incident import wrapped
from tuimon.tui.scene import Scene
from tuimon.tui.stories.batch_story import batch_story, is_suspicious, shape_words

_NONE = "the first batch is looked at in the first training forward; later ones now and then"
_WHY = {"first": "", "sample": "", "suspicion": "bad step", "jump": "loss jump"}


def batches_of(scene: Scene) -> Sequence[Batch]:
    """Newest first."""
    past = scene.frame.past
    return list(reversed(past.batches)) if past is not None else []


def selected_batch(scene: Scene) -> Batch | None:
    """The batch under the cursor; the newest while nobody has moved it."""
    found, place = batches_of(scene), scene.scroll(BatchesPanel.name)
    for at, batch in enumerate(found):
        if place.anchor == batch.step:
            place.cursor = at
            break
    else:
        place.anchor = None
    if not found:
        return None
    place.cursor = max(0, min(place.cursor, len(found) - 1))
    place.anchor = found[place.cursor].step if place.cursor else None
    return found[place.cursor]


class BatchesPanel:
    """The list, newest first."""

    name = "batches"
    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes with the newest batch and the cursor."""
        found, place = batches_of(scene), scene.scroll(self.name)
        newest = (found[0].step, found[0].time_ns) if found else None
        return (newest, len(found), place.cursor, place.top, scene.frame.step is None)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, place = scene.look, scene.scroll(self.name)
        room, inner = height - 2, width - 2
        title = [text(look, "batches", "strong", bold=True)]
        found = batches_of(scene)
        if not found:
            body = centred(look, _NONE, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        selected_batch(scene)
        top = place.settle_cursor(len(found), room)
        body = [
            self._row(scene, batch, selected=top + at == place.cursor, width=inner)
            for at, batch in enumerate(found[top : top + room])
        ]
        body += [fit(look, [], inner) for _ in range(room - len(body))]
        strange = sum(is_suspicious(batch) for batch in found)
        reading = [[text(look, f"{strange} suspicious", "bad", bold=True)]] if strange else []
        reading.append([text(look, f"{len(found):,} looked at", "dim")])
        return framed(
            look,
            body,
            width,
            title=title,
            reading=reading,
            focused=focused,
            thumb=thumb_of(top, room, len(found)),
        )

    def _row(self, scene: Scene, batch: Batch, *, selected: bool, width: int) -> Row:
        look = scene.look
        back = "selected" if selected else ""
        bad = is_suspicious(batch)
        mark = look.glyphs.critical if bad else look.glyphs.info
        tone = "bad" if bad else "strong" if selected else "text"
        first = batch.inputs[0] if batch.inputs else None
        what = DASH if first is None else f"{shape_words(first.shape)} {first.dtype}"
        why = _WHY.get(batch.why, batch.why)
        why += "  " if why else ""
        what = shortened(look, plain(what.replace("torch.", "")), width - 14 - len(why))
        parts = [
            text(look, f" {mark} ", "bad" if bad else "key", back, bold=bad),
            text(look, f"{count(batch.step):>9}  ", tone, back, bold=selected),
            data(look, why, "warn", back),
            text(look, what, "text" if selected else "dim", back),
        ]
        return fit(look, parts, width, pad=look.style("text", back))


class BatchPanel:
    """One batch: what is wrong with it, its tensors, what the loss was given, labels, over time."""

    name = "batch"
    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes with the selected batch, the number of batches and the scroll offset."""
        batch = selected_batch(scene)
        told = None if batch is None else (batch.step, batch.time_ns)
        return (told, len(batches_of(scene)), scene.scroll(self.name).top)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, place = scene.look, scene.scroll(self.name)
        room, inner = height - 2, width - 2
        batch = selected_batch(scene)
        title: Row = [text(look, "batch", "strong", bold=True)]
        if batch is None:
            return framed(look, centred(look, "", inner, room), width, title=title, focused=focused)
        place.is_at_end = False
        known = list(reversed(batches_of(scene)))
        lines = batch_story(batch, known, look.glyphs, inner, frame=scene.frame)
        rows = [fit(look, row, inner) for line in lines for row in wrapped(look, line, inner)]
        top = place.settle(len(rows), room)
        place.is_at_end = False
        body = rows[top : top + room]
        body += [fit(look, [], inner) for _ in range(room - len(body))]
        reading = [[text(look, f"step {count(batch.step)}", "key")]]
        if batch.batch_index is not None:
            total = "" if batch.batches_per_epoch is None else f"/{batch.batches_per_epoch:,}"
            epoch = "" if batch.data_epoch is None else f"epoch {batch.data_epoch:,} "
            words = f"{epoch}batch {count(batch.batch_index)}{total}"
            reading.append([text(look, words, "dim")])
        return framed(
            look,
            body,
            width,
            title=title,
            reading=reading,
            focused=focused,
            thumb=thumb_of(top, room, len(rows)),
        )
