"""The registry: private folders, finding runs, liveness by start time, sweeping."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tuimon.errors import IncompatibleVersion, NoRoom, NoSuchRun
from tuimon.feed import paths, registry
from tuimon.feed.process import start_ticks


def make(name: str = "train", **more: object) -> registry.RunInfo:
    return registry.create_run(name=name, argv=["train.py"], **more)  # type: ignore[arg-type]


def test_a_run_is_private_and_found_by_every_name() -> None:
    info = make()
    assert info.path.stat().st_mode & 0o777 == 0o700
    assert (info.path / "run.json").stat().st_mode & 0o777 == 0o600
    for token in (info.id, info.id[:5], "train", str(os.getpid()), info.folder, None):
        assert registry.find_run(token).id == info.id
    assert registry.is_alive(info)


def test_another_shell_finds_it_by_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    info = make()
    monkeypatch.delenv("TUIMON_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent")
    assert registry.find_run(info.id) == info


def test_without_a_name_the_newest_live_run_is_meant() -> None:
    live = make("live")
    dead = make("dead")
    gone = msgspec.structs.replace(dead, ranks=[registry.RankInfo(0, 999_999_999, 1, "x.ring")])
    registry.save(gone)
    assert registry.find_run(None).id == live.id


def test_messages_of_runs_that_are_not_there() -> None:
    with pytest.raises(NoSuchRun, match="tuimon run"):
        registry.find_run(None)
    make()
    with pytest.raises(NoSuchRun, match="tuimon ls"):
        registry.find_run("nothing")


def test_a_prefix_of_several_is_ambiguous() -> None:
    info = make()
    twin = msgspec.structs.replace(info, id=info.id[:4] + "zzzz", name="twin")
    (info.path.parent / twin.id).mkdir(mode=0o700)
    registry.save(msgspec.structs.replace(twin, folder=str(info.path.parent / twin.id)))
    with pytest.raises(NoSuchRun, match="several"):
        registry.find_run(info.id[:4])


def test_another_format_is_named_not_listed() -> None:
    info = make()
    registry.save(msgspec.structs.replace(info, format_version=99))
    assert registry.list_runs() == []
    with pytest.raises(IncompatibleVersion, match="format 99"):
        registry.find_run(info.id)


def test_a_damaged_run_json_hides_no_other_run() -> None:
    info = make()
    other = make("other")
    (other.path / "run.json").write_bytes(b'{"id": "x')
    assert info.id in [run.id for run in registry.list_runs()]


def test_liveness_needs_pid_and_start_time() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = start_ticks(child.pid)
    assert ticks is not None
    rank = registry.RankInfo(0, child.pid, ticks, "x.ring")
    assert registry.rank_is_alive(rank)
    assert not registry.rank_is_alive(registry.RankInfo(0, child.pid, ticks + 1, "x.ring"))
    child.kill()
    while start_ticks(child.pid) is not None:  # until it is a zombie
        os.sched_yield()
    assert not registry.rank_is_alive(rank)
    child.communicate()


def test_the_end_is_written_down() -> None:
    info = make()
    registry.record_exit(info, registry.ExitInfo("exception", 1, "ValueError"), 41)
    again = registry.find_run(info.id)
    assert again.exit == registry.ExitInfo("exception", 1, "ValueError")
    assert again.last_step == 41


def test_dead_runs_are_swept_and_live_ones_stay() -> None:
    live, dead = make(), make("dead")
    registry.save(
        msgspec.structs.replace(dead, ranks=[registry.RankInfo(0, 999_999_999, 1, "x.ring")])
    )
    assert registry.sweep(time.time()) == []
    assert registry.sweep(time.time() + registry.KEEP_DEAD_S + 1) == [dead.id]
    assert [run.id for run in registry.list_runs()] == [live.id]
    assert not dead.path.exists()


def test_a_chosen_link_to_a_folder_of_ones_own_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(target)
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path / "link"))
    info = make()
    assert info.path.is_relative_to(tmp_path / "link") and (target / info.id).is_dir()
    assert registry.find_run(info.id).id == info.id


def _to_nowhere(place: Path) -> None:
    place.symlink_to("nowhere")


def _to_a_file(place: Path) -> None:
    (place.parent / "file").write_text("")
    place.symlink_to(place.parent / "file")


def _to_a_shared_folder(place: Path) -> None:
    (place.parent / "shared").mkdir()
    (place.parent / "shared").chmod(0o775)
    place.symlink_to(place.parent / "shared")


def _to_another_users_folder(place: Path) -> None:
    place.symlink_to("/proc/1/fdinfo" if os.getuid() else place.parent / "theirs")
    if not os.getuid():
        (place.parent / "theirs").mkdir()
        os.chown(place.parent / "theirs", 12345, 12345)


def _another_users_link(place: Path) -> None:
    (place.parent / "mine").mkdir()
    place.symlink_to(place.parent / "mine")
    if os.getuid():
        pytest.skip("only root can give a link away")
    os.chown(place, 12345, 12345, follow_symlinks=False)


@pytest.mark.parametrize(
    ("lay", "words"),
    [
        (_to_nowhere, "a link that leads nowhere"),
        (_to_a_file, "not a folder"),
        (_to_a_shared_folder, "others may write"),
        (_to_another_users_folder, "belongs to somebody else"),
        (_another_users_link, "link .* somebody else"),
    ],
)
def test_a_link_that_is_not_used_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lay: Callable[[Path], None], words: str
) -> None:
    lay(tmp_path / "link")
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path / "link"))
    with pytest.raises(NoRoom, match=words):
        make()


def test_a_link_that_nobody_chose_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(NoRoom, match="a link"):
        paths.secure_folder(tmp_path / "link")


def test_a_folder_that_cannot_be_looked_into_is_no_run() -> None:
    make()
    with pytest.raises(NoSuchRun, match="no run"):
        registry.find_run("x" * 300)  # too long for any file system


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o1777])
def test_a_chosen_folder_keeps_its_mode_and_the_run_in_it_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("TUIMON_DIR", str(shared))
    assert make().path.stat().st_mode & 0o7777 == 0o700
    assert shared.stat().st_mode & 0o7777 == mode


def test_a_chosen_folder_where_anybody_may_rename_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path / "open"))
    with pytest.raises(NoRoom, match="anybody"):
        make()


def test_a_root_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TUIMON_DIR", str(tmp_path / "file" / "runs"))
    with pytest.raises(NoRoom, match="TUIMON_DIR"):
        make()


def test_network_file_systems_are_known(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda rw\n"
        f"22 21 0:40 / {tmp_path} rw shared:1 - nfs4 server:/x rw\n"
    )
    assert paths.file_system(tmp_path / "run", str(table)) == "nfs4"
    assert paths.file_system(Path("/usr"), str(table)) == "ext4"


def test_ring_size_follows_the_free_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def free(amount: int) -> None:
        monkeypatch.setattr(paths, "free_bytes", lambda folder: amount)

    free(1 << 40)
    assert paths.ring_bytes(tmp_path) == 16 << 20
    free(64 << 20)
    assert paths.ring_bytes(tmp_path) == int((64 << 20) * 0.05) & ~1023
    assert paths.ring_bytes(tmp_path, local_ranks=8) == 1 << 20
    free(1 << 20)
    with pytest.raises(NoRoom):
        paths.ring_bytes(tmp_path)
