"""`tuimon export`: what a run recorded, in the formats of other programs."""

from __future__ import annotations

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
    from tuimon.export.rows import rows
    from tuimon.export.tables import into, write_csv, write_parquet
    from tuimon.feed.recording import read_recording
    from tuimon.feed.recordings import find_recording

    recording = read_recording(find_recording(run))
    limits = _limits(recording)
    written: dict[Path, int] = {}
    try:
        for place, write, suffix in (
            (csv, write_csv, ".csv"),
            (parquet, write_parquet, ".parquet"),
        ):
            if place is not None:
                with into(Path(place), suffix) as draft:
                    made = write(rows(recording, with_layers=with_layers), draft)
                written |= {Path(place) / file.name: count for file, count in made.items()}
        if tensorboard is not None:
            with into(Path(tensorboard), ".tfevents") as draft:
                counts = write_tensorboard(recording, draft).values()
            written[Path(tensorboard)] = sum(counts)
    except FileExistsError as error:
        where = plain(str(error.filename), 200)
        raise Refused(f"{where} is there already; give an empty folder") from error
    except OSError as error:
        folders = [each for each in (csv, parquet, tensorboard) if each is not None]
        where = plain(" or ".join(folders), 200)
        raise Refused(f"cannot write {where}: {error.strerror or type(error).__name__}") from error
    for path, count in written.items():
        click.echo(f"{plain(str(path), 200)}: {count:,} rows", err=True)
    for each in (*limits, *_lost(recording)):
        click.echo(f"tuimon: {each}", err=True)
    return 0


def _limits(recording: Recording) -> list[str]:
    """What is not in the tables, a sentence each."""
    from tuimon.export.postmortem import unfinished
    from tuimon.view.reel import Newest

    told = []
    if recording.grows:
        reached = Newest(recording).step
        told.append(f"{unfinished(recording, -1 if reached is None else reached).detail} at least")
    info = recording.info
    if info is not None and info.world_size > 1:
        shown = next((each.rank for each in info.ranks if each.pid == recording.pid), 0)
        told.append(f"the tables are of rank {shown} alone, of {info.world_size}")
    return told


def _lost(recording: Recording) -> list[str]:
    """What of the recording is not there, once it has been read."""
    told = []
    if recording.lost:
        lost = ", ".join(f"{count:,} {reason}" for reason, count in recording.lost.items())
        told.append(f"of the recording could not be read: {lost}")
    if recording.left_out:
        out = f"{recording.left_out:,} records were thinned out"
        told.append(f"{out} of the recording to keep its bound")
    return told
