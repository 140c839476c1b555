"""`tuimon export`: what a run recorded, in the formats of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuimon.errors import Refused
from tuimon.model.text import plain

if TYPE_CHECKING:
    from tuimon.feed.recording import Recording


def export(
    run: str | None,
    *,
    csv: str | None,
    parquet: str | None,
    tensorboard: str | None,
    with_layers: bool,
) -> int:
    """Write a recording into folders; a line on stderr for each file.

    Raises:
        NoSuchRun, Refused, IncompatibleVersion, UsageError: as their messages say.
    """
    from tuimon.export.board import write_tensorboard
    from tuimon.export.postmortem import all_ranks, symptoms_of
    from tuimon.export.rows import rows
    from tuimon.export.tables import into, write_csv, write_parquet
    from tuimon.feed.recording import read_recording
    from tuimon.feed.recordings import find_recording

    path = find_recording(run)
    recording = read_recording(path)
    ranks, missing = all_ranks(path, recording)
    limits = _limits(recording, ranks, missing)
    symptoms = symptoms_of(path, recording) if len(ranks) > 1 else []
    written: dict[Path, int] = {}
    try:
        for place, write, suffix in (
            (csv, write_csv, ".csv"),
            (parquet, write_parquet, ".parquet"),
        ):
            if place is not None:
                with into(Path(place), suffix) as draft:
                    made = write(rows(ranks, symptoms, with_layers=with_layers), draft)
                written |= {Path(place) / file.name: count for file, count in made.items()}
        if tensorboard is not None:
            with into(Path(tensorboard), ".tfevents") as draft:
                written[Path(tensorboard)] = write_tensorboard(ranks, draft)
    except FileExistsError as error:
        where = plain(str(error.filename), 200)
        raise Refused(f"{where} is there already; give an empty folder") from error
    except OSError as error:
        folders = [each for each in (csv, parquet, tensorboard) if each is not None]
        where = plain(" or ".join(folders), 200)
        raise Refused(f"cannot write {where}: {error.strerror or type(error).__name__}") from error
    for path, count in written.items():
        click.echo(f"{plain(str(path), 200)}: {count:,} rows", err=True)
    for each in (*limits, *_lost(ranks)):
        click.echo(f"tuimon: {each}", err=True)
    return 0


def _limits(recording: Recording, ranks: Sequence[Recording], missing: dict[str, int]) -> list[str]:
    """What is not in the tables, a sentence each."""
    from tuimon.export.postmortem import unfinished
    from tuimon.view.reel import Newest

    told = []
    if recording.grows:
        reached = Newest(recording).step
        told.append(f"{unfinished(recording, -1 if reached is None else reached).detail} at least")
    told += [f"the {each} is not there" for each in missing]
    info = recording.info
    if info is not None and info.world_size > 1 and len(ranks) == 1:
        told.append(f"the tables are of rank {recording.rank or 0} alone, of {info.world_size}")
    return told


def _lost(ranks: Sequence[Recording]) -> list[str]:
    """What of the recordings is not there, once they have been read."""
    told = []
    lost: dict[str, int] = {}
    for each in ranks:
        for reason, count in each.lost.items():
            lost[reason] = lost.get(reason, 0) + count
    if lost:
        words = ", ".join(f"{count:,} {reason}" for reason, count in lost.items())
        told.append(f"of the recording could not be read: {words}")
    left_out = sum(each.left_out for each in ranks)
    if left_out:
        out = f"{left_out:,} records were thinned out"
        told.append(f"{out} of the recording to keep its bound")
    return told
