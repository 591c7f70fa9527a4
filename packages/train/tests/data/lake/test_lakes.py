"""Tables of Delta Lake, Iceberg and Lance: each row of a version once, in the same steps on all ranks."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from sparring.errors import DataError, PluginError
from sparring_train.columns import ColumnBatch
from sparring_train.data.lake.table import is_lake, open_lake
from sparring_train.data.table.dataset import pin_table, read_table

from ..table.table_files import batches, click_log, opened, rows_of, section
from .lake_tables import FORMATS, make_lake

DAYS = ["2026-01-31"] * 200 + ["2026-02-01"] * 100
LOG = click_log(300).append_column("day", pyarrow.array(DAYS))
FIRST, LAST = LOG.slice(0, 150), LOG.slice(150)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = make_lake(request.param, tmp_path)
    made.add(FIRST, partition_by="day")
    yield made
    getattr(made, "close", lambda: None)()


def rows(url: str, world_size: int = 1, **keys: Any) -> list[Any]:
    """All rows of a data set, in order of `at`."""
    return sorted(
        (row for step in steps(url, world_size, **keys) for row in step), key=lambda row: row[3]
    )


def steps(url: str, world_size: int = 1, **keys: Any) -> list[list[Any]]:
    sets = opened(section(url, **keys), world_size)
    train, test = [each.batches(1) for each in sets], [each.test_batches() for each in sets]
    return [rows_of(each) for parts in (train, test) for each in batches(parts)]


def rows_of_files(table: Any, folder: Path, **keys: Any) -> list[Any]:
    parquet.write_table(table, folder / "expected.parquet")
    return rows(str(folder / "expected.parquet"), **keys)


def test_a_table_has_the_rows_of_its_version(lake: Any, tmp_path: Path) -> None:
    before = lake.version
    lake.add(LAST)
    lake.delete("at < 20")
    assert rows(lake.url) == rows_of_files(LOG.slice(20), tmp_path)
    assert rows(lake.url, version=str(before)) == rows_of_files(FIRST, tmp_path)
    # Values of partitions are a column, although files of Delta Lake do not contain it.
    by_day = {"categorical": ["user", "item", "day"], "lists": []}
    assert rows(lake.url, **by_day) == rows_of_files(LOG.slice(20), tmp_path, **by_day)


def test_a_step_has_the_same_rows_at_every_number_of_ranks(lake: Any) -> None:
    lake.add(LAST)
    lake.delete("at = 3")
    expected = steps(lake.url)
    for world_size in (2, 3):
        assert steps(lake.url, world_size) == expected


def test_a_version_is_pinned_when_the_run_starts(lake: Any) -> None:
    data = section(lake.url)
    pinned = pin_table(data, None)
    assert pinned.version == str(lake.version)
    lake.add(LAST)
    assert pin_table(data, {"version": pinned.version, "draw": "row"}) == pinned
    assert pin_table(data, None).version == str(lake.version) != pinned.version


def test_rows_of_another_table_are_read_for_predictions(lake: Any) -> None:
    data = section("/training.parquet", version=None)
    whole = ColumnBatch.joined(list(read_table(data, lake.url)))
    assert sorted(whole.numbers[:, 0].tolist()) == list(range(150))


def test_columns_that_were_added_later_are_missing_before(lake: Any, tmp_path: Path) -> None:
    if lake.url.startswith("lance"):
        pytest.skip("an append to a table of Lance cannot add columns")
    lake.add(LAST.append_column("shop", pyarrow.array(["a"] * len(LAST))))
    found = rows(lake.url, categorical=["user", "shop", "item"], lists=[])
    assert [len(row[1]) for row in found] == [0] * 150 + [1] * 150


def test_a_filter_selects_partitions(lake: Any, tmp_path: Path) -> None:
    lake.add(LAST)
    if lake.url.startswith("lance"):
        with pytest.raises(DataError, match=r"have no partitions; remove data\.filter"):
            rows(lake.url, filter=["day = 2026-02-01"])
        return
    assert rows(lake.url, filter=["day > 2026-01-31"]) == rows_of_files(LOG.slice(200), tmp_path)
    with pytest.raises(DataError, match="found no file"):
        rows(lake.url, filter=["day > 2026-01-31", "day != 2026-02-01"])
    with pytest.raises(DataError, match=r"data\.filter: .*partition.*; remove the"):
        rows(lake.url, filter=["at > 200"])
    with pytest.raises(DataError, match="expected a comparison such as"):
        rows(lake.url, filter=["day"])


def test_a_missing_version_or_table_is_an_error_with_the_fix(lake: Any) -> None:
    with pytest.raises(DataError, match=r"data\.version"):
        rows(lake.url, version="77")
    with pytest.raises(DataError, match=r"check data\.path"):
        rows(f"{lake.url}_other")


def test_a_replaced_table_has_another_fingerprint(lake: Any, tmp_path: Path) -> None:
    before = open_lake(lake.url, None).fingerprint
    assert open_lake(lake.url, str(lake.version)).fingerprint == before
    (tmp_path / "other").mkdir()
    other = make_lake(lake.url.partition(":")[0], tmp_path / "other")
    other.add(FIRST, partition_by="day")
    assert open_lake(other.url, None).fingerprint != before
    getattr(other, "close", lambda: None)()


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(PluginError, match=r'pip install "sparring-train\[delta\]"'):
        open_lake("delta:///clicks", None)
    assert not is_lake("s3://bucket/clicks")


def test_deletion_vectors_of_delta_lake_are_applied(tmp_path: Path) -> None:
    lake = make_lake("delta", tmp_path)
    lake.add(FIRST)
    _delete_by_vector(tmp_path / "a table", [0, 7, 149])
    kept = [at for at in range(150) if at not in (0, 7, 149)]
    assert [row[3] for row in rows(lake.url)] == kept
    assert [row[3] for row in rows(lake.url, version="0")] == list(range(150))


def _delete_by_vector(folder: Path, deleted: list[int]) -> None:
    """Writes version 1 of a table, as Spark does: the same file with a deletion vector."""
    log = folder / "_delta_log"
    lines = (log / f"{0:020}.json").read_text().splitlines()
    added = next(each["add"] for each in map(json.loads, lines) if "add" in each)
    pyroaring = pytest.importorskip("pyroaring", reason="pyroaring is not installed")
    vector = (1681511377).to_bytes(4, "little") + pyroaring.BitMap64(deleted).serialize()
    padded = vector + bytes(-len(vector) % 4)
    python = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(padded).decode().translate(str.maketrans(python, z85))
    features = ["deletionVectors"]
    actions = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {"remove": {"path": added["path"], "dataChange": True, "deletionTimestamp": 0}},
        {
            "add": {
                **added,
                "deletionVector": {
                    "storageType": "i",
                    "pathOrInlineDv": text,
                    "sizeInBytes": len(vector),
                    "cardinality": len(deleted),
                },
            }
        },
    ]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, actions)))


def test_position_deletes_of_iceberg_are_applied_and_others_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake("iceberg", tmp_path)
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import DataScan, FileScanTask

    lake.add(FIRST)
    (task,) = lake.table.scan().plan_files()
    path = task.file.file_path
    positions = {"file_path": ["other", path, path, path], "pos": [3, 149, 7, 7]}
    parquet.write_table(pyarrow.table(positions), tmp_path / "deletes.parquet")

    def plan(kind: Any) -> None:
        deletes = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=f"file://{tmp_path}/deletes.parquet",
            file_format=kind,
        )
        with_deletes = FileScanTask(task.file, {deletes})
        monkeypatch.setattr(DataScan, "plan_files", lambda _: [with_deletes])

    plan(FileFormat.PARQUET)
    kept = [at for at in range(150) if at not in (7, 149)]
    assert [row[3] for row in rows(lake.url)] == kept
    plan(FileFormat.PUFFIN)
    with pytest.raises(DataError, match="PUFFIN, expected PARQUET; compact the table"):
        rows(lake.url)
    lake.close()


def test_renamed_columns_of_iceberg_are_found_in_old_files(tmp_path: Path) -> None:
    lake = make_lake("iceberg", tmp_path)
    lake.add(FIRST)
    with lake.table.update_schema() as schema:
        schema.rename_column("user", "visitor")
    renamed = LOG.rename_columns([{"user": "visitor"}.get(each, each) for each in LOG.column_names])
    lake.add(renamed.slice(150))
    keys = {"categorical": ["visitor", "item", "tags"]}
    assert rows(lake.url, **keys) == rows_of_files(renamed, tmp_path, **keys)
    lake.close()
