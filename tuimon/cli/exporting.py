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
        for folder, write in ((csv, write_csv), (parquet, write_parquet)):
            if folder is not None:
                found = rows(recording, with_layers=with_layers)
                written |= write(found, into(Path(folder)))
        if tensorboard is not None:
            written |= write_tensorboard(recording, into(Path(tensorboard)))
    except FileExistsError as error:
        where = plain(str(error.filename), 200)
        raise Refused(f"{where} is there already; give an empty folder") from error
    except OSError as error:
        folders = [each for each in (csv, parquet, tensorboard) if each is not None]
        where = plain(str(error.filename or " or ".join(folders)), 200)
        raise Refused(f"cannot write {where}: {error.strerror or type(error).__name__}") from error
    for path, count in written.items():
        click.echo(f"{plain(str(path), 200)}: {count:,} rows", err=True)
    for each in limits:
        click.echo(f"tuimon: {each}", err=True)
    lost = {reason: count for reason, count in recording.lost.items() if count}
    if lost:
        told = ", ".join(f"{count:,} {reason}" for reason, count in lost.items())
        click.echo(f"tuimon: of the recording could not be read: {told}", err=True)
    if recording.left_out:
        told = f"{recording.left_out:,} records were thinned out of the recording to keep its bound"
        click.echo(f"tuimon: {told}", err=True)
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
