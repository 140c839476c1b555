"""`tuimon.toml`: what a person would otherwise write on every command line.

Read from the working folder, else from the user's configuration folder. Flags win over it, and so
do environment variables. Imports neither torch nor click.
"""

from __future__ import annotations

import math
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import structs

from tuimon.errors import UsageError
from tuimon.model.text import plain

FILE = "tuimon.toml"
MAX_BYTES = 64 << 10  # a file of settings; anything larger is something else


Theme = Literal["dark", "light", "high-contrast", "colour-blind"]
THEMES: tuple[str, ...] = get_args(Theme)


class RunSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[run]`: the options of `tuimon run` of the same names.

    Attributes:
        on_non_finite: "continue", "hold", "skip", "rollback" or "raise".
        max_hold: seconds that a hold may last.
        autopsy: "off", "light" or "full".
        snapshot_every: updates from one copy of the healthy state to the next; 0 for none.
        fail_on: "warning" or "critical".
        report: file of the report.
    """

    on_non_finite: Literal["continue", "hold", "skip", "rollback", "raise"] | None = None
    max_hold: Annotated[float, msgspec.Meta(gt=0)] | None = None
    autopsy: Literal["off", "light", "full"] | None = None
    snapshot_every: Annotated[int, msgspec.Meta(ge=0)] | None = None
    fail_on: Literal["warning", "critical"] | None = None
    report: str | None = None


class AttachSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[attach]`: the options of `tuimon attach` of the same names.

    Attributes:
        hz: pictures a second at most.
        glyphs: "auto", "braille", "block" or "ascii".
        readonly: without any key that changes the training.
        theme: "dark", "light", "high-contrast" or "colour-blind"; else the one chosen last.
        title: whether the title of the window tells state, progress and name; it does, usually.
        bell: "off", which is the usual, "critical" or "warning": what the terminal rings for.
        tab: progress and trouble as the state of the tab (OSC 9;4); not usually.
    """

    hz: Annotated[float, msgspec.Meta(ge=0.5, le=60)] | None = None
    glyphs: Literal["auto", "braille", "block", "ascii"] | None = None
    readonly: bool | None = None
    theme: Theme | None = None
    title: bool | None = None
    bell: Literal["off", "critical", "warning"] | None = None
    tab: bool | None = None


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[record]`: what is kept on disk of every run, for `tuimon replay` and `tuimon report`.

    Attributes:
        on: whether runs are recorded at all; they are, usually.
        max_bytes: of one run; beyond that old detail is thinned.
        max_age_days, keep_runs: recordings that are older, or beyond so many, are deleted.
    """

    on: bool | None = None
    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] | None = None
    max_age_days: Annotated[float, msgspec.Meta(gt=0)] | None = None
    keep_runs: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of the file. What it does not name is None: the usual.

    Attributes:
        price_per_hour: what an hour of the training costs, in whatever currency.
    """

    run: RunSettings = RunSettings()
    attach: AttachSettings = AttachSettings()
    record: RecordSettings = RecordSettings()
    price_per_hour: Annotated[float, msgspec.Meta(ge=0)] | None = None

    def by_command(self) -> dict[str, dict[str, Any]]:
        """What is set, by command and option."""
        named: dict[str, dict[str, Any]] = msgspec.to_builtins(self)
        # Of no command: whoever shows a wait, or records, asks for them.
        del named["price_per_hour"], named["record"]
        return {
            command: {option: value for option, value in options.items() if value is not None}
            for command, options in named.items()
        }


def read_settings(folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings that hold in a folder; the usual ones where there is no file.

    Args:
        folder: the working folder; None is the one this process is in.

    Raises:
        UsageError: the file cannot be read, belongs to another user, or says what is not known.
    """
    for place in _places(folder, environ):
        try:
            info = place.stat()
        except OSError:
            continue  # none here
        if stat.S_ISREG(info.st_mode):
            return _under(environ, _parsed(place, info))
    return Settings()


def price_per_hour(
    folder: Path | None = None, environ: Mapping[str, str] = os.environ
) -> float | None:
    """What an hour of a training costs, by the environment or else the file.

    Raises:
        UsageError: the price is no number, or the file cannot be used.
    """
    said = environ.get("TUIMON_PRICE", "")
    if not said:
        return read_settings(folder, environ).price_per_hour
    try:
        price = float(said)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise UsageError(f"TUIMON_PRICE={plain(said, 40)} is no price; give a number, 0 or above")
    return price


def _under(environ: Mapping[str, str], found: Settings) -> Settings:
    """What the environment leaves of the file."""
    if environ.get("TUIMON_AUTOPSY"):
        return structs.replace(found, run=structs.replace(found.run, autopsy=None))
    return found


def _places(folder: Path | None, environ: Mapping[str, str]) -> list[Path]:
    home = environ.get("HOME", "")
    configured = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    places = [(folder or Path()) / FILE]
    return [*places, Path(configured) / "tuimon" / FILE] if configured else places


def _parsed(place: Path, info: os.stat_result) -> Settings:
    # A policy can change a training: in a shared folder only one's own file is followed.
    if info.st_uid not in (os.getuid(), 0):
        raise UsageError(f"{place} belongs to another user; copy it or leave that folder")
    if info.st_size > MAX_BYTES:
        raise UsageError(f"{place} has {info.st_size:,} bytes; settings take at most {MAX_BYTES:,}")
    try:
        return msgspec.convert(tomllib.loads(place.read_text(encoding="utf-8")), Settings)
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        said = plain(str(error), 120)
        raise UsageError(f"{place} is no TOML: {said}; mend or move it") from error
    except msgspec.ValidationError as error:
        words = plain(str(error), 120).replace("Object", "the file", 1)
        raise UsageError(f"{place}: {words}; README, Settings, lists what it may say") from error
