"""Deltas: chains, erased ids, kept versions, rejected deltas, and concurrent readers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring import ScanChunk, SnapshotWriter, TableConfig, TableDescription
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.errors import (
    InvalidArgumentError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotIOError,
)

from .conftest import bits


def check(tables: Any, training: Any, ids: Any) -> None:
    """Rows of ids, whether they are found, and all rows of a scan."""
    assert (bits(tables.lookup("item", ids)) == bits(training.expected(ids))).all()
    assert (tables.find("item", ids).found == np.isin(ids, list(training.rows))).all()
    scanned = np.concatenate([keys for keys, _ in tables.scan("item", 700)])
    assert sorted(scanned.tolist()) == sorted(training.rows)


def test_a_chain_reads_as_the_newest_rows_without_erased_ids_P4(training: Any) -> None:
    rng = np.random.default_rng(7)
    ids = np.arange(-600, 600)
    training.save(training.draw(rng.choice(ids, 700, replace=False), 0))
    training.publish()
    tables = sparring_packed.open(training.served)
    check(tables, training, ids)
    for step in range(2, 8):
        base = training.served_url()
        changed = training.draw(rng.choice(ids, 90, replace=False), step)
        erased = rng.choice(ids, 60, replace=False).tolist()
        # Some ids are both: the row counts.
        training.save(changed, erased)
        written = training.publish(base=base)
        assert written.num_rows == {"item": 90}
        assert tables.refresh()
        assert not tables.refresh()
        assert tables.num_layers == step
        assert tables.version.step == step
        check(tables, training, ids)
    with sparring_packed.open(training.served_url()) as opened:
        assert opened.num_layers == 7
        check(opened, training, ids)
        assert (
            tables.pool("item", ids, [0, len(ids)]).tobytes()
            == opened.pool("item", ids, [0, len(ids)]).tobytes()
        )
    with sparring_packed.open(training.served_url(), partitions=(0, 2048)) as half:
        from sparring.contracts import partition

        ours = ids[partition(ids) < 2048]
        assert (bits(half.lookup("item", ours)) == bits(training.expected(ours))).all()


def test_a_delta_of_blocks_of_columns_is_published_as_whole_rows(training: Any) -> None:
    ids = np.arange(40)
    training.save(training.draw(ids, 1))
    training.publish()
    base, served = training.url(), training.served_url()
    changed, erased = training.draw(ids[:9], 2), ids[30:33]
    keys, rows = np.array(list(changed)), np.array(list(changed.values()))
    training.step += 1
    writer = SnapshotWriter(training.url(), step=training.step, base=base)
    for block in (ColumnBlock(0, 12), ColumnBlock(12, 24)):
        # In different orders, as from different ranks.
        order = np.arange(9)[:: -1 if block.begin else 1]
        part = np.ascontiguousarray(rows[order, block.begin : block.end])
        chunk = ScanChunk(keys[order], part, np.zeros(9, np.uint64))
        writer.write_table(TableDescription.of(training.config), [chunk], [erased], block)
    writer.finish()
    writer.commit()
    training.rows |= changed
    for key in erased.tolist():
        del training.rows[key]
    written = training.publish(base=served)
    assert (written.num_rows, written.num_erased) == ({"item": 9}, {"item": 3})
    with sparring_packed.open(training.served_url()) as tables:
        check(tables, training, np.arange(-5, 50))


def test_a_delta_over_several_snapshots_of_training_has_all_their_changes_P4(training: Any) -> None:
    ids = np.arange(300)
    training.save(training.draw(ids[:200], 0))
    training.publish()
    base = training.served_url()
    training.save(training.draw(ids[:50], 1), [60, 61, 250])
    training.save(training.draw([0, 61, 299], 2), [1, 2])
    training.publish(base=base)
    with sparring_packed.open(base) as tables:
        assert tables.refresh(training.served)
        assert tables.num_layers == 2
        check(tables, training, ids)


def test_a_full_snapshot_replaces_a_chain(training: Any) -> None:
    ids = np.arange(200)
    training.save(training.draw(ids, 0))
    training.publish()
    tables = sparring_packed.open(training.served)
    training.save(training.draw(ids[:20], 1), [30])
    training.publish()
    assert tables.refresh()
    assert tables.num_layers == 1
    check(tables, training, ids)


def test_only_kept_versions_can_be_requested_P6(training: Any) -> None:
    training.save(training.draw([1, 2], 0))
    training.publish()
    tables = sparring_packed.open(training.served)
    first, hashes = training.expected([1]), [tables.version.hash]
    for step in (1, 2):
        base = training.served_url()
        training.save(training.draw([1], step))
        training.publish(base=base)
        tables.refresh()
        hashes.insert(0, tables.version.hash)
        if step == 1:
            pinned = tables.pull({"item": [1]}, version=hashes[1])
            assert (bits(pinned.rows["item"]) == bits(first)).all()
            assert pinned.version.step == 1
    assert [version.hash for version in tables.versions] == hashes[:2]
    with pytest.raises(InvalidArgumentError, match="is not kept"):
        tables.pull({"item": [1]}, version=hashes[2])


def test_a_kept_version_can_be_served_again_P5(training: Any) -> None:
    training.save(training.draw([1, 2], 0))
    training.publish()
    first = training.served_url()
    tables = sparring_packed.open(training.served)
    before = tables.lookup("item", [1])
    training.save(training.draw([1], 1))
    training.publish(base=first)
    assert tables.refresh()
    assert (bits(tables.lookup("item", [1])) != bits(before)).any()
    assert tables.refresh(first)
    assert (bits(tables.lookup("item", [1])) == bits(before)).all()
    assert [version.step for version in tables.versions] == [1, 2]


@pytest.mark.parametrize("is_served", [False, True])
def test_a_removed_base_is_a_gap_unless_it_is_open_P5(training: Any, is_served: bool) -> None:
    for step in range(3):
        base = training.served_url() if step else None
        training.save(training.draw([1, 2], step))
        training.publish(base=base)
    tables = sparring_packed.open(training.served_url(2 if is_served else 1))
    shutil.rmtree(training.served_url(2))
    if is_served:
        assert tables.refresh(training.served_url(3))
        assert tables.version.step == 3
        return
    with pytest.raises(SnapshotIOError, match=r"is a delta over step-0.*2, which cannot be used"):
        tables.refresh(training.served_url(3))
    assert tables.version.step == 1
    assert tables.lookup("item", [1]).shape == (1, 24)


def test_a_delta_over_another_base_of_that_name_is_rejected_P5(training: Any) -> None:
    training.save(training.draw([1, 2], 0))
    training.publish()
    tables = sparring_packed.open(training.served)
    training.save(training.draw([1], 1))
    training.publish(base=training.served_url(1))
    shutil.rmtree(training.served_url(1))
    sparring_packed.write(training.url(1), training.served_url(1), quantize={"item": "fp32"})
    # The base that is open is used; opening it now fails.
    assert tables.refresh(training.served_url(2))
    with pytest.raises(InvalidArgumentError, match=r"with the hash .* has"):
        sparring_packed.open(training.served_url(2))


def test_a_newer_version_with_a_damaged_manifest_is_reported_P5(
    training: Any,
) -> None:
    training.save(training.draw(range(50), 0))
    training.publish()
    base = training.served_url()
    training.save(training.draw(range(5), 1))
    training.publish(base=base)
    damaged = Path(training.served_url()) / "manifest.json"
    whole = damaged.read_bytes()
    with sparring_packed.open(base) as tables:
        for content in (whole[:-1], b"", whole.replace(b'"step": 2', b'"step": 9')):
            damaged.write_bytes(content)
            with pytest.raises(SnapshotDamagedError, match="step-000000000002"):
                tables.refresh(training.served)
            with pytest.raises(SnapshotDamagedError):
                sparring_packed.open(training.served)
            assert tables.version.step == 1
        # A later intact version is loaded, and an earlier one is ignored.
        training.save(training.draw(range(5), 2), is_delta=False)
        training.publish()
        assert tables.refresh(training.served)
        assert not tables.refresh(training.served)
        assert tables.version.step == 3


def test_other_tables_are_rejected_and_both_are_named_P5(new_training: Any) -> None:
    training = new_training()
    training.save(training.draw([1], 0))
    training.publish()
    tables = sparring_packed.open(training.served)
    for config, quantize, named in (
        (
            TableConfig("film", dim=24),
            "fp32",
            r"film \(dim 24, fp32\), but the open tables are item \(dim 24",
        ),
        (
            TableConfig("item", dim=8),
            "fp32",
            r"item \(dim 8, fp32\), but the open tables are item \(dim 24",
        ),
        (
            TableConfig("item", dim=24),
            "int8",
            r"item \(dim 24, int8\), but the open tables are .*fp32",
        ),
    ):
        other = new_training(config, f"{config.name}{config.dim}{quantize}")
        other.save(other.draw([1], 0))
        other.publish(quantize={config.name: quantize})
        with pytest.raises(InvalidArgumentError, match=named):
            tables.refresh(other.served)
        assert tables.version.step == 1


def test_no_delta_is_written_if_changes_are_unknown_P5(new_training: Any) -> None:
    training = new_training()
    training.save(training.draw([1, 2], 0))
    training.publish(quantize={"item": "int8"})
    base = training.served_url()
    with pytest.raises(InvalidArgumentError, match="there are no changes"):
        sparring_packed.write(training.url(), training.served_url(9), base=base)
    training.save(training.draw([1], 1))
    with pytest.raises(InvalidArgumentError, match=r"'int8'.*write a full serving snapshot"):
        training.publish(base=base, quantize={"item": "fp32"})
    with pytest.raises(InvalidArgumentError, match="must be in the folder of its delta"):
        sparring_packed.write(training.url(), training.folder / "elsewhere/step-2", base=base)
    training.save(training.draw([3], 1), is_delta=False)
    with pytest.raises(InvalidArgumentError, match="not in the chain of"):
        training.publish(base=base)
    assert [each.name for each in training.served.iterdir()] == ["step-000000000001"]


def test_filters_have_all_ids_that_changed_and_all_that_exist_P10(training: Any) -> None:
    training.save(training.draw(np.arange(2_000), 0))
    training.publish()
    with sparring_packed.open(training.served) as tables:
        assert tables.changed_filter("item") is None
        assert tables.existing_filter("item").contains(np.arange(2_000)).all()
    base = training.served_url()
    training.save(training.draw(np.arange(5_000, 5_300), 1), [7, 8])
    training.publish(base=base)
    with sparring_packed.open(training.served) as tables:
        changed, existing = tables.changed_filter("item"), tables.existing_filter("item")
        assert changed.contains(np.array([*range(5_000, 5_300), 7, 8])).all()
        assert changed.contains(np.arange(10_000, 20_000)).mean() < 0.05
        assert existing.contains(np.array(list(training.rows))).all()
        assert existing.contains(np.arange(10_000, 20_000)).mean() < 0.05
    plain = training.folder / "plain/step-1"
    options = sparring_packed.WriteOptions(filter_rate=None)
    sparring_packed.write(training.url(1), plain, options=options)
    with sparring_packed.open(plain) as tables:
        assert tables.existing_filter("item") is None


def test_a_serving_snapshot_is_never_overwritten_P1(training: Any) -> None:
    training.save(training.draw([1], 0))
    training.publish()
    with pytest.raises(SnapshotError, match="never overwritten"):
        training.publish()
    with pytest.raises(SnapshotDamagedError, match="expected 'sparring serving snapshot'"):
        sparring_packed.open(training.folder / "run")
    (training.folder / "empty").mkdir()
    with pytest.raises(SnapshotIOError, match="has no serving snapshot; write one"):
        sparring_packed.open(training.folder / "empty")


def test_a_failed_write_leaves_nothing_P2(training: Any) -> None:
    training.save(training.draw([1, 2], 0) | {3: np.full(24, np.nan, np.float32)})
    with pytest.raises(
        InvalidArgumentError, match=r"id 3 of table item is not finite.*fp32 or bf16"
    ):
        training.publish(quantize={"item": "int8"})
    assert list(training.served.iterdir()) == []
    training.publish()
    with sparring_packed.open(training.served) as tables:
        assert np.isnan(tables.lookup("item", [3])).all()


def test_readers_see_one_version_over_all_tables_during_refreshes_P6(tmp_path: Path) -> None:
    """Each row of step s is filled with s, so that a torn row or mixed versions are detected."""
    configs = [TableConfig("a", dim=16), TableConfig("b", dim=40)]
    ids = np.arange(400)

    def save(step: int) -> None:
        base = str(tmp_path / f"run/step-{step - 1:012d}") if step > 1 else None
        writer = SnapshotWriter(str(tmp_path / f"run/step-{step:012d}"), step=step, base=base)
        for config in configs:
            rows = np.full((len(ids), config.dim), step, np.float32)
            chunk = ScanChunk(ids, rows, np.zeros(len(ids), np.uint64))
            writer.write_table(TableDescription.of(config), [chunk])
        writer.finish()
        writer.commit()

    steps = 12
    for step in range(1, steps + 1):
        save(step)
    url = str(tmp_path / "served/step-{:012d}").format
    run = str(tmp_path / "run/step-{:012d}").format
    sparring_packed.write(run(1), url(1))
    tables = sparring_packed.open(url(1))
    wrong: list[object] = []
    seen: set[int] = set()
    done = threading.Event()

    def read() -> None:
        last = 0
        while not done.is_set():
            answer = tables.pull({"a": ids, "b": ids[::-1]})
            found = {float(value) for rows in answer.rows.values() for value in np.unique(rows)}
            if found != {float(answer.version.step)} or answer.version.step < last:
                wrong.append((found, answer.version.step, last))
            last = answer.version.step
            seen.add(last)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for step in range(2, steps + 1):
            sparring_packed.write(run(step), url(step), base=url(step - 1) if step % 6 else None)
            assert tables.refresh(url(step))
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert len(seen) > 2
    assert tables.version.step == steps


READER = """
import sys, sparring_packed
tables = sparring_packed.open(sys.argv[1])
for _, rows in tables.scan("item"):
    pass
with open("/proc/self/smaps") as maps:
    text = maps.read()
print(text)
"""


def test_processes_share_the_pages_of_a_file(training: Any) -> None:
    training.config = TableConfig("item", dim=256)
    training.save(training.draw(np.arange(4_000), 0))
    training.publish()
    tables = sparring_packed.open(training.served)
    for _ in tables.scan("item"):
        pass
    command = [sys.executable, "-c", READER, str(training.served)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (mapping,) = [each for each in text.split("VmFlags") if "rows.item" in each]
    kilobytes = {
        line.split(":")[0]: int(line.split()[1])
        for line in mapping.splitlines()
        if line.endswith(" kB")
    }
    assert kilobytes["Rss"] > 3_500
    assert kilobytes["Private_Dirty"] == 0
    assert kilobytes["Pss"] < 0.7 * kilobytes["Rss"]


def test_opening_without_verifying_reads_no_rows(training: Any) -> None:
    training.save(training.draw(np.arange(3_000), 0))
    training.publish()
    (file,) = Path(training.served_url()).glob("rows.*")
    with file.open("r+b") as opened:
        opened.seek(-200, os.SEEK_END)
        opened.write(b"damaged")
    with sparring_packed.open(training.served, verify="open") as tables:
        tables.lookup("item", [1])
        with pytest.raises(SnapshotDamagedError, match=r"rows\.item.*hash"):
            tables.verify()
    with pytest.raises(SnapshotDamagedError, match=r"rows\.item.*hash"):
        sparring_packed.open(training.served)
