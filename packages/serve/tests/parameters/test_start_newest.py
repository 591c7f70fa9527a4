"""`start: newest` skips damaged snapshots, if they are newer than the one that a shard begins with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparring import open_snapshot
from sparring.errors import SnapshotError
from sparring_serve.parameters.push_log_files import Base, find_base
from sparring_serve.parameters.service import ParameterService
from sparring_testing.faults.damaged_file import flip_byte

from .conftest import MakeShards, made_gradients


def save(make_shards: MakeShards, folder: Path, *names: str) -> None:
    """Saves snapshots of 1, 2, … pushes."""
    shards = make_shards(1, folders=[str(folder)])
    with shards.client() as client:
        for seed, name in enumerate(names):
            client.push(made_gradients(seed), wait="applied")
            client.save(name)


def start(make_shards: MakeShards, folder: Path) -> ParameterService:
    [service] = make_shards(1, folders=[str(folder)], start="newest").services.values()
    service.shard.start()
    service.resume()
    return service


def test_an_older_damaged_snapshot_does_not_matter(make_shards: MakeShards, tmp_path: Path) -> None:
    save(make_shards, tmp_path, "a", "b", "c")
    flip_byte(tmp_path / "a/manifest.json")
    flip_byte(max((tmp_path / "b").iterdir(), key=lambda each: each.stat().st_size))
    service = start(make_shards, tmp_path)
    shard = service.shard
    assert (shard.steps, shard.not_fresh, shard.lost, shard.num_skipped) == (3, "", "", 0)
    assert service.lookups.metrics.value("refreshes_total") == 0


@pytest.mark.parametrize("file", ["manifest.json", "rows"])
def test_several_newer_damaged_snapshots_are_skipped(
    make_shards: MakeShards, tmp_path: Path, file: str
) -> None:
    save(make_shards, tmp_path, "a", "b", "c")
    for name in "bc":
        folder = tmp_path / name
        rows = max(folder.iterdir(), key=lambda each: each.stat().st_size)
        flip_byte(folder / file if file != "rows" else rows)
    service = start(make_shards, tmp_path)
    shard = service.shard
    assert (shard.steps, shard.num_skipped) == (1, 2)
    assert shard.began_with == str(tmp_path / "a")
    assert all(f"{tmp_path}/{name}" in shard.not_fresh for name in "bc")
    assert "the newest snapshot is damaged" in shard.lost
    assert service.lookups.metrics.value("refreshes_total", result="refused") == 2
    shard.settle()
    assert shard.not_fresh == ""


def test_without_an_intact_snapshot_the_error_names_the_newest(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    save(make_shards, tmp_path, "a", "b")
    for name in "ab":
        flip_byte(max((tmp_path / name).iterdir(), key=lambda each: each.stat().st_size))
    with pytest.raises(SnapshotError, match=r"parameters.start=newest, .*/b: .*damaged"):
        start(make_shards, tmp_path)


def test_a_folder_without_snapshots_starts_without_rows(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    service = start(make_shards, tmp_path / "none")
    assert (service.shard.steps, service.shard.not_fresh, service.shard.lost) == (0, "", "")


def test_a_snapshot_of_a_log_is_found_at_another_path_and_not_by_its_name_alone(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    for name in ("own", "external"):
        save(make_shards, tmp_path / name, "good")
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    own, external, copy = (str(tmp_path / name / "good") for name in ("own", "external", "copy"))
    saved, loaded = (Base.of(open_snapshot(each)) for each in (own, external))
    assert find_base(own, [saved, loaded]) == saved
    assert find_base(copy, [saved, loaded]) == saved
    assert find_base(own, [loaded]) is None
    assert find_base(own, [Base(own, save="of another save")]) is None
    assert find_base(own, [Base(own)]) == Base(own)  # of an older release
    assert find_base(copy, [Base(own)]) is None
    assert find_base("", [Base(""), saved]) == Base("")
    flip_byte(tmp_path / "own/good/manifest.json")
    assert find_base(own, [saved, loaded]) == saved
