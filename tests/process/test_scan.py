"""`tuimon scan` on real files: what torch and safetensors write, and what an attacker would."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from safetensors.torch import save_file

from tuimon.cli import scanning, status_of
from tuimon.inspect.places import Place, places_of
from tuimon.inspect.scan import ScannedFile, Scanner


@pytest.fixture(scope="module")
def scanner() -> Iterator[Scanner]:
    """One process that reads the files of torch, for all tests."""
    with Scanner() as scanner:
        yield scanner


@pytest.fixture
def shared(scanner: Scanner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses that process, too."""

    class Shared(Scanner):
        def __init__(self, **_: Any) -> None:
            super().__init__()
            self._reader = scanner._reader

        def close(self) -> None:
            pass

    monkeypatch.setattr(scanning, "Scanner", Shared)


def weights(bad: bool = False) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {
        "layer.weight": torch.randn(8, 16),
        "layer.bias": torch.zeros(8, dtype=torch.bfloat16),
        "scale": torch.tensor(3.0, dtype=torch.float16),
        "small": torch.randn(4, 4).to(torch.float8_e4m3fn),
    }
    if bad:
        made["layer.weight"][1, 2] = float("nan")
        made["layer.weight"][3, 4] = float("inf")
    return made


def scanned(scanner: Scanner, path: Path) -> ScannedFile:
    (place,) = places_of(path)
    return scanner.scan(place)


def both(path: Path, *, bad: bool = False) -> Path:
    """A checkpoint as people save it: model, optimizer, and whatever else."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if bad:
        optimizer.state[model.weight]["exp_avg"][0, 0] = float("-inf")
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "args": argparse.Namespace(lr=0.1, noise=np.float64(3)),
            "best": float("inf"),
            "lost": float("nan"),
        },
        path,
    )
    return path


def test_what_torch_saves_is_measured_by_name(scanner: Scanner, tmp_path: Path) -> None:
    found = scanned(scanner, both(tmp_path / "c.pt", bad=True))
    assert found.error is None
    names = {each.name: each for each in found.tensors}
    assert {"model.weight", "optimizer.state.0.exp_avg", "optimizer.state.1.step"} <= set(names)
    (bad,) = found.unhealthy(None)
    assert (bad.name, bad.neginf, bad.nan) == ("optimizer.state.0.exp_avg", 1, 0)
    assert any("argparse.Namespace" in note for note in found.notes)
    assert any("lost is NaN" in note for note in found.notes)


def test_all_formats_give_the_same_figures(scanner: Scanner, tmp_path: Path) -> None:
    made = weights(bad=True)
    del made["small"]  # the old format of torch cannot be loaded with it
    save_file(made, tmp_path / "a.safetensors")
    torch.save(made, tmp_path / "b.pt")
    torch.save(made, tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    first, *others = (
        sorted(scanned(scanner, tmp_path / name).tensors, key=lambda each: each.name)
        for name in ("a.safetensors", "b.pt", "c.pt")
    )
    assert len(first) == 3 and all(other == first for other in others)


def test_views_are_measured_as_what_they_show(scanner: Scanner, tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    nan = torch.tensor([float("nan")])
    torch.save(
        {
            "turned": base.T,
            "part": base[1:, 2],
            "spread": nan.expand(5, 7),
            "sparse": torch.eye(3).to_sparse(),
            "whole": torch.nn.Linear(2, 2).requires_grad_(False),
            "none": torch.empty(0, 3),
        },
        tmp_path / "v.pt",
    )
    names = {each.name: each for each in scanned(scanner, tmp_path / "v.pt").tensors}
    assert (names["turned"].absmax, names["turned"].shape) == (11.0, [4, 3])
    assert names["part"].absmax == 10.0
    assert (names["spread"].nan, names["spread"].shape) == (35, [5, 7])
    assert names["sparse"].absmax == 1.0
    assert "whole._parameters.weight" in names
    assert names["none"].absmax is None


class Runs:
    """A pickle that calls something when it is loaded."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


def test_nothing_of_a_file_is_executed(scanner: Scanner, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    calls = {
        "os": Runs(os.system, f"touch {mark}"),
        "exec": Runs(exec, f"open({str(mark)!r}, 'w')"),
        "open": Runs(open, str(mark), "w"),
        "path": Runs(Path.touch, mark),
        "popen": Runs(subprocess.Popen, ["touch", str(mark)]),
        "getattr": Runs(getattr, mark, "touch"),
        "torch": Runs(torch.save, 1, str(mark)),
    }
    for name, call in calls.items():
        for new in (True, False):
            path = tmp_path / f"{name}-{new}.pt"
            torch.save({"w": torch.ones(2), "x": call}, path, _use_new_zipfile_serialization=new)
            found = scanned(scanner, path)
            assert found.error and not found.tensors, name
            assert found.error.isprintable() and "executed" in found.error
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(calls["os"], 2))
    assert "bare pickle" in str(scanned(scanner, tmp_path / "bare.pt").error)
    assert not mark.exists()


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))


def out_of_bounds(path: Path) -> None:
    """Claims a tensor of a terabyte over a storage of a few bytes."""
    size = 1 << 38
    torch.save({"w": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, payload in parts.items():
            if name.endswith("data.pkl"):
                # (4,) as a shape: BININT1 4, TUPLE1
                payload = payload.replace(
                    b"K\x04\x85", b"\x8a\x05" + size.to_bytes(5, "little") + b"\x85"
                )
            archive.writestr(name, payload)


HOSTILE: dict[str, Any] = {
    "empty.pt": b"",
    "short.safetensors": b"\x01\x02",
    "text.pt": b"hello, this is no checkpoint at all",
    "absurd.safetensors": (1 << 62).to_bytes(8, "little") + b"{}",
    "model.gguf.safetensors": b"GGUF" + bytes(40),
    "pointer.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "pickle.pt": b"\x80\x02" + b"(" * 100_000,
    "deep.pt": b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
    "zip.pt": b"PK\x03\x04" + bytes(100),
    "bomb.pt": bomb,
    "bounds.pt": out_of_bounds,
    "pipe.pt": os.mkfifo,
    "zero.pt": lambda path: path.symlink_to("/dev/zero"),
    "circle.pt": lambda path: path.symlink_to(path),
    "gone.safetensors": lambda path: path.symlink_to("nowhere"),
    "out.safetensors.index.json": b'{"weight_map": {"w": "../../etc/passwd"}}',
    "lacks.safetensors.index.json": b'{"weight_map": {"w": "not-there.safetensors"}}',
    "junk.safetensors.index.json": b'{"weight_map": [[[',
    "missing.pt": lambda path: None,
    "bad\x1b[31m\nname.pt": b"x" * 20,
}


WHY = {
    "bomb.pt": "would grow to",
    "pickle.pt": "is a bare pickle (protocol 2), which is a program",
    "bounds.pt": "cannot be loaded",
    "pointer.safetensors": "git lfs pull",
    "out.safetensors.index.json": "outside of its folder",
    "zero.pt": "no regular file",
    "pipe.pt": "no regular file",
    "absurd.safetensors": "claims a header",
}


@pytest.mark.usefixtures("shared")
def test_whatever_it_is_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, make in HOSTILE.items():
        path = tmp_path / name
        if isinstance(make, bytes):
            path.write_bytes(make)
        else:
            make(path)
        assert status_of(["scan", str(path)]) == 2, name
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("tuimon: ") and len(err) < 500, (name, err)
        assert lines[0].isprintable() and "unexpected" not in err, name
        assert WHY.get(name, "") in err, (name, err)
        assert out == ""


def test_a_file_of_torch_cut_anywhere_is_one_line(scanner: Scanner, tmp_path: Path) -> None:
    for new in (True, False):
        path = tmp_path / f"{new}.pt"
        torch.save(weights(), path, _use_new_zipfile_serialization=new)
        whole = path.read_bytes()
        for size in range(1, len(whole), 97):
            path.write_bytes(whole[:size])
            found = scanned(scanner, path)
            # An old file whose last storage is cut may be found out only when it is measured.
            assert found.error and found.error.isprintable(), size


def test_a_reader_that_dies_costs_one_file(tmp_path: Path) -> None:
    with Scanner() as scanner:
        torch.save(weights(), tmp_path / "w.pt")
        assert scanned(scanner, tmp_path / "w.pt").error is None
        assert scanner._reader._process is not None
        scanner._reader._process.kill()
        found = scanned(scanner, tmp_path / "w.pt")
        assert found.error and "SIGKILL" in found.error


def test_the_command_speaks_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.safetensors"
    save_file(weights(bad=True), path)
    assert status_of(["scan", str(path), "--json"]) == 6
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["healthy"]) == ("tuimon.scan/1", False)
    (file,) = said["files"]
    assert (file["path"], file["error"]) == (str(path), None)
    (tensor,) = file["tensors"]
    assert {"name", "dtype", "shape", "nan", "posinf", "neginf", "absmax", "rms", "zero_frac",
            "headroom"} <= set(tensor)  # fmt: skip
    assert (tensor["name"], tensor["nan"], tensor["posinf"]) == ("layer.weight", 1, 1)
    assert status_of(["scan", str(path), "--json", "--all"]) == 6
    assert len(json.loads(capsys.readouterr().out)["files"][0]["tensors"]) == 4


def test_weights_that_do_not_fit_where_they_are_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.tensor([500.0]), "optimizer.x": torch.tensor([1e9])}, path)
    assert status_of(["scan", str(path)]) == 0
    assert status_of(["scan", str(path), "--serve", "float16"]) == 0
    capsys.readouterr()
    assert status_of(["scan", str(path), "--serve", "float8_e4m3fn"]) == 6
    assert "0.896×" in capsys.readouterr().out


def test_shards_and_folders_of_hugging_face(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    for number in (1, 2):  # as in its cache, where files are links
        save_file({f"w{number}": torch.ones(2)}, blobs / f"{number}")
        (folder / f"model-{number}.safetensors").symlink_to(f"../blobs/{number}")
    index = {"weight_map": {f"w{n}": f"model-{n}.safetensors" for n in (1, 2)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    (folder / "engine.bin").write_bytes(b"something else")
    (folder / "again").symlink_to(folder)
    assert status_of(["scan", str(folder)]) == 0
    assert "2 files, 2 tensors" in capsys.readouterr().out
    index["weight_map"]["w3"] = "model-2.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert status_of(["scan", str(folder)]) == 2
    assert "lacks 1 tensors that its index promises, such as 'w3'" in capsys.readouterr().err


def test_a_distributed_checkpoint_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "saved", tmp_path / "one.pt"
    torch.distributed.checkpoint.save(weights(bad=True), checkpoint_id=folder, no_dist=True)
    for part in ("", "__0_0.distcp", ".metadata"):
        assert status_of(["scan", str(folder / part)]) == 2
        said = capsys.readouterr().err
        assert "a distributed checkpoint" in said and said.count("\n") == 1
    words = said.split("convert it by python -m ")[1].split()
    words[-2:] = str(folder), str(file)  # in the place of FOLDER FILE.pt
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_module(words[0], run_name="__main__")
    assert torch.load(file, weights_only=True).keys() == weights().keys()


def test_what_changed_between_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = weights(), weights(bad=True)
    new["layer.bias"][0] = 2
    new["scale"] = new["scale"].float()
    new["extra"] = torch.ones(1)
    del new["small"]
    save_file(old, tmp_path / "a.safetensors")
    save_file(new, tmp_path / "b.safetensors")
    paths = [str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]
    assert status_of(["scan", "--diff", *paths, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    changes = {each["name"]: each for each in said["changes"]}
    assert (said["same"], said["missing"], said["added"]) == (False, ["small"], ["extra"])
    assert (changes["layer.bias"]["max_abs"], changes["layer.bias"]["relative"]) == (2.0, None)
    assert changes["layer.weight"]["non_finite"] == [0, 2]
    assert changes["scale"]["became"] == "float32"
    assert status_of(["scan", "--diff", paths[0], paths[0]]) == 0
    assert "0 changed, 4 the same" in capsys.readouterr().out


def test_the_bytes_of_torch_files_are_compared(scanner: Scanner, tmp_path: Path) -> None:
    torch.save({"w": torch.arange(200_000.0).reshape(2, -1).T}, tmp_path / "w.pt")
    with scanner.opened(tmp_path / "w.pt") as opened:
        read = opened.read(0)
        pieces = [bytes(read(400_000)) for _ in range(2)]
    expected = torch.arange(200_000.0).reshape(2, -1).T.contiguous().numpy().tobytes()
    assert b"".join(pieces) == expected


@pytest.mark.usefixtures("shared")
def test_the_first_bad_of_twenty_is_found_by_reading_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(20):
        torch.save(weights(bad=number >= 12), tmp_path / f"step-{number * 100}.pt")
    last = tmp_path / "step-1900.pt"
    last.write_bytes(last.read_bytes()[:1000])
    assert status_of(["scan", "--first-bad", str(tmp_path)]) == 6
    out = capsys.readouterr().out
    assert "first bad: " in out and "step-1200.pt" in out and "read 7 of 20" in out
    assert "step-1900.pt: is a damaged archive, or is cut short; passed over" in out
    assert status_of(["scan", "--first-bad", str(tmp_path), "--json"]) == 6
    said = json.loads(capsys.readouterr().out)
    assert said["first_bad"].endswith("step-1200.pt") and said["last_good"].endswith("1100.pt")


def test_memory_is_bounded_by_a_piece_not_by_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    save_file({"w": torch.zeros(64 << 20, dtype=torch.uint8)}, path)
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tuimon.inspect.scan import Scanner\n"
        "from tuimon.inspect.places import Place\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert Scanner().scan(Place(Path(sys.argv[1]))).error is None\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    unit = 1024 if sys.platform == "linux" else 1
    assert int(done.stdout) * unit < 24 << 20


def test_a_place_with_a_problem_is_not_opened() -> None:
    assert Scanner().scan(Place(Path("/nowhere"), problem="is not wanted")).error == "is not wanted"
