"""A run does not resume with other files, because its position would mean other rows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from sparring import make_plugin_manager
from sparring.errors import ConfigError
from sparring_train.config.reading.loader import parse_config
from sparring_train.data.file_identities import describe_changes, identify_files
from sparring_train.data.table.files import find_files
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.result import SilentProgress, TrainResult


def write(path: Path, seed: int, count: int = 400) -> None:
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "user": random.integers(0, 50, count),
        "clicked": np.arange(count) % 2,
    }
    table = pyarrow.table(columns)
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)


def train(folder: Path, path: str, epochs: int, *, storage: str = "memory") -> TrainResult:
    manager = make_plugin_manager()
    config = parse_config(
        f"""
threads: 1
data: {{kind: table, path: {path}, label: clicked, categorical: [user], batch_size: 100}}
model: {{kind: dlrm, embedding_dim: 2, bottom_mlp: [2], top_mlp: [2]}}
storage: {{backend: {storage}}}
training: {{epochs: {epochs}}}
snapshots: {{url: {folder}/run, resume: {str(epochs > 1).lower()}}}
""",
        plugin_manager=manager,
    )
    return find_trainer("torch", manager).train(config, manager, SilentProgress())


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_run_resumes_only_with_the_same_files(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("sparring_torch")
    logs = tmp_path / "logs"
    for day in (1, 2):
        write(logs / f"day{day}.{ending}", day)
    steps = train(tmp_path, str(logs), 1).steps

    write(logs / f"day0.{ending}", 0)
    with pytest.raises(ConfigError, match=rf"day0\.{ending} is new; restore the files"):
        train(tmp_path, str(logs), 2)
    (logs / f"day0.{ending}").unlink()

    write(logs / f"day2.{ending}", 7)
    with pytest.raises(ConfigError, match=rf"day2\.{ending} has changed"):
        train(tmp_path, str(logs), 2)

    (logs / f"day2.{ending}").rename(logs / f"day3.{ending}")
    with pytest.raises(ConfigError, match=rf"day2\.{ending} is missing, day3\.{ending} is new"):
        train(tmp_path, str(logs), 2)
    (logs / f"day3.{ending}").unlink()

    # The same files in another folder, with other times, are the same data.
    write(logs / f"day2.{ending}", 2)
    os.utime(logs / f"day2.{ending}", (0, 0))
    moved = tmp_path / "moved" / "logs"
    shutil.copytree(logs, moved)
    assert train(tmp_path, str(moved), 2).steps == 2 * steps


def test_identities_contain_pieces_of_the_whole_file(tmp_path: Path) -> None:
    content = bytearray(np.random.default_rng(0).bytes(1 << 20))
    path = tmp_path / "rows.parquet"

    def identity() -> str:
        path.write_bytes(content)
        [found] = identify_files(find_files(str(path))).values()
        return found

    before = identity()
    for place in (0, len(content) // 7, len(content) - 1):
        content[place] ^= 1
        assert identity() != before
        content[place] ^= 1
    assert identity() == before


def test_names_are_relative_to_the_folder_of_all_files(tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    for name in ("/a/1/x.csv", "/a/2/x.csv", "/a/2/y.csv"):
        system.pipe(f"/identities{name}", name.encode())
        local = tmp_path / name[1:]
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_text(name)
    found = identify_files(find_files("memory://identities/a/*/*.csv"))
    assert list(found) == ["1/x.csv", "2/x.csv", "2/y.csv"]
    assert identify_files(find_files(f"{tmp_path}/a/*/*.csv")) == found


def test_long_lists_of_changes_are_shortened() -> None:
    before = {f"{n}.csv": "1" for n in range(9)}
    assert describe_changes(before, {}).endswith("2.csv is missing and 6 more differences")
    assert describe_changes(before, before) == ""
