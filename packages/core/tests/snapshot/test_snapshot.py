"""Snapshots: any reader reads the written rows."""

from __future__ import annotations

import threading
import tracemalloc
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sparring.contracts.storage.results import ScanChunk
from sparring.contracts.tables.table import TableConfig
from sparring.errors import (
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    SnapshotError,
    UnknownTableError,
)
from sparring.kernels import functions as kernels
from sparring.snapshot import writer as writing
from sparring.snapshot.chain import count_rows, scan_rows
from sparring.snapshot.format.data_file import DataFile, Segment
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.place.local import LocalRoot
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import latest_snapshot, list_snapshots
from sparring.snapshot.row_router import SnapshotOptions
from sparring.snapshot.writer import SnapshotWriter
from sparring_cli.snapshots.verify import verify_snapshot
from sparring_testing.processes.table_steps import read_chunks

from .snapshot_samples import ITEM, chunk_of, chunks_of, make_chunk, rows_by_key, save, small_files


@pytest.mark.parametrize("name", ["buffer_bytes", "small_bytes"])
def test_segments_can_be_read_for_any_memory_limit_of_the_writer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("row_router", "format.rows_file"):
        monkeypatch.setattr(f"sparring.snapshot.{module}.SEGMENT_BYTES", 1 << 12)
    given: dict[str, int] = {"num_ranges": 2, "buffer_bytes": 1, "small_bytes": 1, name: 1 << 20}
    chunk = make_chunk(np.arange(1_000))
    writer = SnapshotWriter(str(tmp_path / "a"), step=1, options=SnapshotOptions(**given))  # type: ignore[arg-type]
    writer.write_table(ITEM, [chunk])
    writer.finish()
    assert rows_by_key(writer.commit(), "item") == read_chunks([chunk])


def test_several_snapshots_in_one_folder_are_distinguished_by_their_manifests(
    tmp_path: Path,
) -> None:
    chunks = {name: make_chunk([place, 7]) for place, name in enumerate(("first", "second"))}
    both = tmp_path / "both"
    both.mkdir()
    for place, (name, chunk) in enumerate(chunks.items()):
        table = replace(ITEM, name=name)
        writer = SnapshotWriter(str(tmp_path / name), step=1)
        writer.write_table(table, [chunk])
        writer.finish()
        writer.commit()
        (tmp_path / name / "manifest.json").rename(tmp_path / name / f"manifest.{place}.json")
        for file in (tmp_path / name).iterdir():
            file.rename(both / file.name)
    for place, (name, chunk) in enumerate(chunks.items()):
        snapshot = open_snapshot(both / f"manifest.{place}.json")
        assert list(snapshot.tables) == [name]
        assert {int(key) for each in scan_rows(snapshot, name) for key in each.keys} == set(
            chunk.keys.tolist()
        )
    with pytest.raises(SnapshotError, match=r"has no manifest\.2\.json"):
        open_snapshot(both / "manifest.2.json")


EXTREMES = [-1, 0, 1, 2**63 - 1, -(2**63)]


def test_rows_of_a_table_may_be_written_before_its_turn(tmp_path: Path) -> None:
    other = TableDescription.of(TableConfig("other", 4), has_scores=True)
    first, later = make_chunk(range(1_000)), make_chunk(range(1_000, 3_000))
    url = str(tmp_path / "step-1")
    writer = SnapshotWriter(url, step=1, options=small_files())

    def chunks() -> Iterator[ScanChunk]:
        for chunk in chunks_of(make_chunk(range(500), table=other)):
            yield chunk
            if not chunk.keys[0]:
                writer.write_ahead(ITEM, chunks_of(first))

    writer.write_table(other, chunks())
    writer.write_table(ITEM, chunks_of(later))
    with pytest.raises(InvalidArgumentError, match="written already"):
        writer.write_ahead(ITEM, [])
    writer.finish()
    snapshot = writer.commit()
    assert rows_by_key(snapshot) == read_chunks([first, later])
    assert rows_by_key(snapshot, "other") == read_chunks([make_chunk(range(500), table=other)])
    assert verify_snapshot(snapshot).is_sound
    whole = [entry for entry in snapshot.files("item") if entry.partitions == (0, 4096)]
    assert [entry.num_keys for entry in whole] == [1_000]
    some = scan_rows(snapshot, "item", partitions=range(100))
    mine = chunk_of(first, later)
    is_mine = kernels.partition(mine.keys) < 100
    assert sorted(np.concatenate([each.keys for each in some])) == sorted(mine.keys[is_mine])


@pytest.mark.parametrize("backend", ["local", "memory"])
def test_a_reader_of_rows_written_early_reads_only_its_partitions(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4"""
    monkeypatch.setattr(writing, "_AHEAD_BUFFER_BYTES", 16 << 10)
    monkeypatch.setattr(writing, "_AHEAD_SMALL_BYTES", 1 << 10)
    root = str(tmp_path) if backend == "local" else f"memory://{uuid.uuid4().hex}"
    chunk = make_chunk(range(20_000))
    writer = SnapshotWriter(f"{root}/step-1", step=1)
    writer.write_ahead(ITEM, chunks_of(chunk))
    writer.write_table(ITEM, [])
    writer.finish()
    snapshot = writer.commit()
    assert rows_by_key(snapshot) == read_chunks([chunk])
    assert verify_snapshot(snapshot).is_sound
    files = snapshot.files("item")
    assert all(entry.partitions == (0, 4096) for entry in files)
    assert sum(len(list(snapshot.segments(entry))) for entry in files) > 100
    wanted = np.zeros(4096, np.bool_)
    wanted[1000:1300] = True
    given = [keys for entry in files for keys in snapshot.segments(entry, wanted)]
    # 300 partitions are in 3 of 16 ranges.
    assert sum(map(len, given)) == pytest.approx(20_000 * 3 / 16, rel=0.1)
    found = [part.keys for part in scan_rows(snapshot, "item", np.flatnonzero(wanted))]
    assert set(np.concatenate(found)) == set(chunk.keys[wanted[kernels.partition(chunk.keys)]])


def test_the_header_of_the_largest_file_fits_all_its_partitions(tmp_path: Path) -> None:
    table = TableDescription.of(TableConfig("item", 4, "bfloat16"), has_scores=True)
    file = DataFile("url", "name", LocalRoot(tmp_path).stage("a", "t").create("b"), (0, 4096))
    keys = np.zeros(1, np.int64)
    segment = Segment(keys, keys.astype(np.uint64), np.zeros((1, 4), table.numpy_dtype))
    while not file.is_full:
        file.data_bytes = 10**11
        file.describe(segment, (4000, 4096))
    file.append(segment)
    assert file.seal(lambda: None).size_bytes > 0


def test_a_writer_may_pause_after_each_mib(tmp_path: Path) -> None:
    pauses: list[str] = []

    def pause() -> None:
        pauses.append(threading.current_thread().name)

    table = TableDescription.of(TableConfig("item", 256))
    chunk = make_chunk(range(4_000), table=table)
    options = SnapshotOptions(num_ranges=2, buffer_bytes=3 << 20, small_bytes=1 << 20, pause=pause)
    save(tmp_path, 1, chunk, table=table, options=options)
    written = [name for name in pauses if "rows" in name]
    hashed = [name for name in pauses if "rows" not in name]
    assert len(written) >= 4_000 * 1032 // (3 << 20) * 3
    assert len(hashed) >= 4_000 * 1032 >> 20


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("options", [None, small_files()], ids=["one file", "many files"])
def test_rows_and_scores_are_restored_bit_for_bit(
    tmp_path: Path, dtype: str, options: SnapshotOptions | None
) -> None:
    config = TableConfig("item", 3, dtype, state_width=2, state_method="adam")
    table = TableDescription.of(config, has_scores=True)
    rng = np.random.default_rng(0)
    keys = np.array([*EXTREMES, *range(100, 2_000)], np.int64)
    rows = rng.integers(0, 256, (len(keys), config.row_bytes), np.uint8).view(table.numpy_dtype)
    chunk = ScanChunk(keys, rows, rng.integers(0, 2**64, len(keys), np.uint64))
    snapshot = save(tmp_path, 7, chunk, table=table, options=options)
    assert rows_by_key(snapshot) == read_chunks([chunk])
    assert count_rows(snapshot, "item") == len(keys)
    num_files = len(snapshot.files("item"))
    assert num_files == 1 if options is None else num_files >= 4
    assert (snapshot.step, snapshot.world_size, snapshot.base) == (7, 1, None)


def test_the_safetensors_library_reads_the_files(tmp_path: Path) -> None:
    """S3"""
    for dtype in ("float32", "bfloat16", "int8"):
        table = TableDescription.of(TableConfig("item", 4, dtype), has_scores=True)
        chunk = make_chunk(range(1_000), table=table)
        snapshot = save(tmp_path / dtype, 1, chunk, table=table, options=small_files())
        found = {}
        for entry in snapshot.files("item"):
            tensors = load_file(Path(snapshot.url) / entry.name)
            for part in range(len(tensors) // 3):
                keys, rows = tensors[f"keys.{part}"], tensors[f"rows.{part}"]
                scores = tensors[f"scores.{part}"]
                for key, row, score in zip(keys, rows, scores, strict=True):
                    found[int(key)] = (row.tobytes(), int(score))
        assert found == read_chunks([chunk])


def test_files_are_divided_by_partition_and_only_the_requested_ones_are_read(
    tmp_path: Path,
) -> None:
    """S4"""
    chunk = make_chunk(range(5_000))
    snapshot = save(tmp_path, 1, chunk, options=small_files())
    partitions = kernels.partition(chunk.keys)
    for wanted in ([0, 1, 5], range(1024), range(1000, 1100), [4095], []):
        part = np.isin(partitions, np.asarray(list(wanted)))
        chosen = ScanChunk(chunk.keys[part], chunk.rows[part], chunk.scores[part])
        assert rows_by_key(snapshot, partitions=wanted) == read_chunks([chosen])
    for entry in snapshot.files("item"):
        if entry.partitions[0] >= 1024:
            (Path(snapshot.url) / entry.name).unlink()
    assert len(rows_by_key(snapshot, partitions=range(1024))) == (partitions < 1024).sum()
    with pytest.raises(InvalidArgumentError, match="0 to 4095"):
        scan_rows(snapshot, "item", [4096])


def test_chunks_have_at_most_the_requested_rows(tmp_path: Path) -> None:
    snapshot = save(tmp_path, 1, make_chunk(range(1_000)))
    assert {len(chunk) for chunk in scan_rows(snapshot, "item", chunk_rows=100)} == {100}
    assert len(rows_by_key(snapshot, chunk_rows=7)) == 1_000


def test_memory_does_not_grow_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableDescription.of(TableConfig("item", 256))

    def chunks() -> Iterator[ScanChunk]:
        for begin in range(0, 100_000, 10_000):
            yield make_chunk(np.arange(begin, begin + 10_000), table=table)

    # tracemalloc sees NumPy's memory, but no mapped memory.
    monkeypatch.setattr("sparring.snapshot.row_router.allocate_returnable", np.zeros)
    tracemalloc.start()
    try:
        writer = SnapshotWriter(str(tmp_path / "a"), step=1)
        writer.write_table(table, chunks())
        writer.finish()
        snapshot = writer.commit()
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert sum(map(len, scan_rows(snapshot, "item"))) == 100_000
        read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(entry.size_bytes for entry in snapshot.files()) > 100e6
    # Creating a chunk here takes some of it.
    assert written < 120 << 20
    assert read < 32 << 20


def test_an_empty_table_and_one_without_scores_are_saved(tmp_path: Path) -> None:
    table = TableDescription.of(TableConfig("plain", 2))
    writer = SnapshotWriter(str(tmp_path / "a"), step=0)
    writer.write_table(table, [make_chunk([3, 4], table=table)])
    writer.write_table(ITEM, [])
    writer.finish()
    snapshot = writer.commit()
    assert {score for _, score in rows_by_key(snapshot, "plain").values()} == {0}
    assert rows_by_key(snapshot) == {}
    assert (count_rows(snapshot, "item"), count_rows(snapshot, "plain")) == (0, 2)
    assert dict(snapshot.tables) == {"plain": table, "item": ITEM}
    with pytest.raises(UnknownTableError, match="choose one of its tables: item, plain"):
        scan_rows(snapshot, "user")


def test_state_is_restored_with_values_and_arrays(tmp_path: Path) -> None:
    arrays = {
        "counters": np.frombuffer(b"12345", np.uint8),
        "scalar": np.float64(0.1),
        "empty": np.empty((0, 3), np.float32),
        "mask": np.array([True, False]),
        "transposed": np.arange(6).reshape(2, 3).T,
        "big_endian": np.arange(3, dtype=">i4"),
    }
    values = {"best": float("-inf"), "words": ["ä", None], "seed": 2**127, "nested": {"a": [1.5]}}
    writer = SnapshotWriter(str(tmp_path / "a"), step=0)
    writer.write_state("optimizer", values, arrays)
    writer.write_state("nothing")
    writer.finish()
    snapshot = writer.commit()
    state = snapshot.state("optimizer")
    assert state.values == values
    assert set(state.arrays) == set(arrays)
    for name, array in arrays.items():
        found = state.arrays[name]
        assert found.dtype == np.asarray(array).dtype.newbyteorder("<")
        assert found.shape == np.shape(array)
        assert (found == array).all()
    assert snapshot.state("nothing").values is None
    assert snapshot.state_names() == ["nothing", "optimizer"]
    with pytest.raises(SnapshotError, match=r"no state 'model' of rank 0; .*nothing, opt"):
        snapshot.state("model")


def test_ranks_write_one_snapshot_together(tmp_path: Path) -> None:
    url, chunk = str(tmp_path / "a"), make_chunk(range(900))
    parts = list(chunks_of(chunk))
    writers = [SnapshotWriter(url, step=3, rank=rank, world_size=3, token="t") for rank in range(3)]
    for rank, writer in enumerate(writers):
        writer.write_table(ITEM, [parts[rank]])
        writer.write_state("random", {"rank": rank})
        writer.finish()
        assert list_snapshots(tmp_path) == []
    snapshot = writers[0].commit()
    assert rows_by_key(snapshot) == read_chunks([chunk])
    assert [snapshot.state("random", rank).values["rank"] for rank in range(3)] == [0, 1, 2]
    for writer in writers[1:]:
        writer.abandon()
    assert rows_by_key(open_snapshot(url)) == read_chunks([chunk])
    assert not list(tmp_path.glob(".*"))


def test_commit_waits_for_all_ranks_but_not_forever(tmp_path: Path) -> None:
    writer = SnapshotWriter(
        str(tmp_path / "a"), step=3, world_size=3, token="t", deadline_seconds=0.05
    )
    writer.finish()
    with pytest.raises(DeadlineError, match=r"ranks \[1, 2\] did not write"):
        writer.commit()
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_parts_of_another_attempt_are_not_included(tmp_path: Path) -> None:
    """S8"""
    url = str(tmp_path / "a")
    dead = SnapshotWriter(url, step=3, rank=1, world_size=2, token="dead")
    dead.write_table(ITEM, [make_chunk([1])])
    dead.finish()
    living = SnapshotWriter(url, step=3, world_size=2, token="live", deadline_seconds=0.05)
    living.finish()
    with pytest.raises(DeadlineError):
        living.commit()
    other = SnapshotWriter(url, step=4, rank=1, world_size=2, token="live")
    other.finish()
    with pytest.raises(SnapshotError, match="same values on all ranks"):
        living.commit()
    with pytest.raises(InvalidArgumentError, match="token must be"):
        SnapshotWriter(url, step=3, world_size=2)


def test_ranks_must_describe_a_table_equally(tmp_path: Path) -> None:
    writers = [
        SnapshotWriter(str(tmp_path / "a"), step=3, rank=rank, world_size=2, token="t")
        for rank in range(2)
    ]
    for writer, dim in zip(writers, (2, 3), strict=True):
        writer.write_table(TableDescription.of(TableConfig("item", dim)), [])
        writer.finish()
    with pytest.raises(SnapshotError, match="rank 1 describes table 'item' as"):
        writers[0].commit()


def test_a_snapshot_is_never_overwritten(tmp_path: Path) -> None:
    """S1"""
    first = save(tmp_path, 1, make_chunk([1]))
    with pytest.raises(SnapshotError, match="exists already"):
        SnapshotWriter(first.url, step=1)
    url = str(tmp_path / "b")
    writers = [SnapshotWriter(url, step=2) for _ in range(2)]
    for version, writer in enumerate(writers):
        writer.write_table(ITEM, [make_chunk([1], version)])
        writer.finish()
    won = writers[1].commit()
    with pytest.raises(SnapshotError, match="by another attempt"):
        writers[0].commit()
    writers[0].abandon()
    assert rows_by_key(won) == read_chunks([make_chunk([1], 1)])


def test_calls_out_of_order_are_rejected(tmp_path: Path) -> None:
    writer = SnapshotWriter(str(tmp_path / "a"), step=1)
    with pytest.raises(ClosedError, match="requires 'finished'"):
        writer.commit()
    writer.write_table(ITEM, [])
    with pytest.raises(InvalidArgumentError, match="written already"):
        writer.write_table(ITEM, [])
    writer.write_state("a")
    with pytest.raises(InvalidArgumentError, match="written already"):
        writer.write_state("a")
    with pytest.raises(InvalidArgumentError, match="must be convertible to JSON"):
        writer.write_state("b", {"a": object()})
    with pytest.raises(InvalidArgumentError, match="dtype complex128; convert"):
        writer.write_state("c", arrays={"a": np.ones(2, np.complex128)})
    with pytest.raises(InvalidArgumentError, match="its name must start"):
        writer.write_state("../d")
    writer.finish()
    with pytest.raises(ClosedError, match="requires 'writing'"):
        writer.write_state("e")
    writer.abandon()
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_chunks_that_do_not_fit_the_table_are_rejected(tmp_path: Path) -> None:
    other = TableDescription.of(TableConfig("other", 2))
    for chunk, why in (
        (make_chunk([1], table=other), r"shape \(1, 5\)"),
        (ScanChunk(np.arange(2), np.zeros((2, 5)), np.zeros(2, np.uint64)), "must be float32"),
    ):
        writer = SnapshotWriter(str(tmp_path / "a"), step=1)
        with pytest.raises(InvalidArgumentError, match=why):
            writer.write_table(ITEM, [chunk])
        writer.abandon()


def test_a_description_determines_which_tables_match() -> None:
    config = TableConfig("item", 4, state_width=4, state_method="adagrad", seed=3)
    found = TableDescription.of(config, extra={"more": 1})
    found.check(config)
    found.check(TableConfig("item", 4, state_width=4))
    assert found.extra["seed"] == 3
    assert found.extra["initializer"]["kind"] == "uniform"
    assert found.extra["more"] == 1
    for other, why in (
        (TableConfig("item", 5), r"dim 4 in the snapshot, 5 declared; state of 4 elements"),
        (TableConfig("user", 4, "float64"), "name 'item' in the snapshot, 'user' declared; dtype"),
        (config.with_state(4, "adam"), "of 'adagrad' in the snapshot, 4 of 'adam' declared"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            found.check(other)


def test_the_latest_snapshot_has_the_highest_step(tmp_path: Path) -> None:
    assert latest_snapshot(tmp_path / "nowhere") is None
    assert list_snapshots(tmp_path) == []
    for step in (2, 10, 9):
        save(tmp_path, step, make_chunk([step]))
    (tmp_path / "link").symlink_to(tmp_path / "step-000000010")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    assert [open_snapshot(url).step for url in list_snapshots(tmp_path)] == [2, 9, 10]
    latest = latest_snapshot(tmp_path)
    assert latest is not None
    assert latest.step == 10
    (tmp_path / "step-000000010" / "manifest.json").write_text("{}")
    latest = latest_snapshot(tmp_path)
    assert latest is not None
    assert latest.step == 9


def test_without_a_commit_there_is_no_snapshot(tmp_path: Path) -> None:
    """S2"""
    with pytest.raises(SnapshotError, match="there is no snapshot"):
        open_snapshot(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(SnapshotError, match=r"not a committed .* has no manifest\.json"):
        open_snapshot(tmp_path / "b")
    with pytest.raises(InvalidArgumentError, match="does not name a folder"):
        open_snapshot("/")
