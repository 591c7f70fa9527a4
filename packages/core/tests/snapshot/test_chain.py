"""Deltas: intact chains are read as their newest rows; others are rejected."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, SnapshotDamagedError, SnapshotError
from sparring.kernels import functions as kernels
from sparring.snapshot import chain as merging
from sparring.snapshot.chain import count_rows
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.reader import Snapshot, open_snapshot
from sparring.snapshot.retention import compact, list_snapshots, retain
from sparring.snapshot.writer import SnapshotWriter
from sparring_cli.snapshots.verify import verify_snapshot
from sparring_testing.processes.table_steps import read_chunks

from .snapshot_samples import ITEM, make_chunk, rows_by_key, save, small_files


@pytest.fixture
def chain(tmp_path: Path) -> list[Snapshot]:
    """0 to 999; then 500 to 1,199 rewritten, 0 to 99 erased; then 50 to 59 restored, 990 erased."""
    first = save(tmp_path, 1, make_chunk(range(1_000)), options=small_files())
    second = save(tmp_path, 2, make_chunk(range(500, 1_200), 1), base=first.url, erased=range(100))
    third = save(tmp_path, 3, make_chunk(range(50, 60), 2), base=second.url, erased=[990, 4_242])
    return [first, second, third]


EXPECTED = read_chunks([make_chunk(range(100, 500), 0)]) | read_chunks(
    [make_chunk(range(500, 1_200), 1)]
)
EXPECTED |= read_chunks([make_chunk(range(50, 60), 2)])
del EXPECTED[990]


@pytest.mark.parametrize("window_keys", [10**6, 100])
def test_a_chain_reads_as_its_newest_rows(
    chain: list[Snapshot], monkeypatch: pytest.MonkeyPatch, window_keys: int
) -> None:
    """S10"""
    monkeypatch.setattr(merging, "_WINDOW_KEYS", window_keys)
    newest = chain[-1]
    assert rows_by_key(newest) == EXPECTED
    assert count_rows(newest, "item") == len(EXPECTED)
    wanted = np.arange(0, 4096, 3)
    partitions = kernels.partition(np.array(list(EXPECTED)))
    chosen = np.array(list(EXPECTED))[np.isin(partitions, wanted)].tolist()
    assert rows_by_key(newest, partitions=wanted) == {key: EXPECTED[key] for key in chosen}
    assert verify_snapshot(newest).is_sound
    assert verify_snapshot(newest).num_rows == {"item": len(EXPECTED)}
    assert [each.step for each in newest.chain] == [3, 2, 1]
    # An older snapshot of the chain is unchanged.
    assert rows_by_key(chain[0]) == read_chunks([make_chunk(range(1_000), 0)])


def test_a_long_chain_is_read(tmp_path: Path) -> None:
    table = TableDescription.of(TableConfig("item", 1), has_scores=True)
    snapshot = save(tmp_path, 0, make_chunk([0], 0, table), table=table)
    for step in range(1, 60):
        chunk = make_chunk([step], 0, table)
        snapshot = save(tmp_path, step, chunk, base=snapshot.url, erased=[step - 2], table=table)
    assert sorted(rows_by_key(open_snapshot(snapshot.url))) == [58, 59]


def test_a_delta_contains_all_its_state(chain: list[Snapshot]) -> None:
    assert [each.state("optimizer").values["steps"] for each in chain] == [1, 2, 3]


def test_a_chain_with_a_gap_or_a_wrong_base_is_rejected(
    chain: list[Snapshot], tmp_path: Path
) -> None:
    """S9"""
    shutil.move(chain[0].url, tmp_path / "away")
    with pytest.raises(
        SnapshotError, match=r"there is no snapshot .*1, the base of .*step-000000002"
    ):
        open_snapshot(chain[-1].url)
    save(tmp_path, 1, make_chunk(range(3)))
    with pytest.raises(SnapshotError, match="the base was replaced"):
        open_snapshot(chain[-1].url)
    shutil.rmtree(tmp_path / "step-000000001")
    (tmp_path / "step-000000001").symlink_to(tmp_path / "away")
    with pytest.raises(SnapshotError):
        open_snapshot(chain[-1].url)


def test_a_delta_is_written_only_over_an_intact_sibling(
    chain: list[Snapshot], tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match="must be in the folder of its delta"):
        SnapshotWriter(str(tmp_path / "other" / "a"), step=4, base=chain[0].url)
    with pytest.raises(SnapshotError, match="there is no snapshot"):
        SnapshotWriter(str(tmp_path / "a"), step=4, base=str(tmp_path / "b"))
    writer = SnapshotWriter(str(tmp_path / "a"), step=4)
    with pytest.raises(InvalidArgumentError, match="pass the base of a delta"):
        writer.write_table(ITEM, [], [np.array([1])])
    writer.abandon()


def test_damage_in_a_base_is_found_through_its_delta(chain: list[Snapshot]) -> None:
    entry = chain[0].files("item")[0]
    path = Path(chain[0].url) / entry.name
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(SnapshotDamagedError, match="step-000000001"):
        rows_by_key(chain[-1])
    assert verify_snapshot(chain[-1]).problems[0].snapshot == chain[0].url


def test_compaction_gives_the_same_rows_and_state(chain: list[Snapshot], tmp_path: Path) -> None:
    """S10"""
    full = compact(chain[-1].url, tmp_path / "full" / "step-000000003")
    assert (full.base, full.step) == (None, 3)
    assert rows_by_key(full) == EXPECTED
    assert full.state("optimizer").values == chain[-1].state("optimizer").values
    assert (full.state("optimizer").arrays["moment"] == np.arange(3) + 3).all()
    assert not list((tmp_path / "full").glob(".*"))
    with pytest.raises(SnapshotError, match="exists already"):
        compact(chain[-1].url, full.url)
    assert rows_by_key(full) == EXPECTED


def test_compaction_of_a_damaged_chain_commits_nothing(
    chain: list[Snapshot], tmp_path: Path
) -> None:
    entry = chain[0].files("item")[0]
    (Path(chain[0].url) / entry.name).write_bytes(b"")
    with pytest.raises(SnapshotDamagedError):
        compact(chain[-1].url, tmp_path / "full" / "a")
    assert not list((tmp_path / "full").iterdir())


def test_compaction_keeps_the_state_of_all_ranks(tmp_path: Path) -> None:
    url = str(tmp_path / "a")
    writers = [SnapshotWriter(url, step=1, rank=r, world_size=2, token="t") for r in range(2)]
    for writer in writers:
        writer.write_state("random", {"rank": writer.rank})
        writer.finish()
    writers[0].commit()
    full = compact(url, tmp_path / "b")
    assert [full.state("random", rank).values["rank"] for rank in range(2)] == [0, 1]


def test_retention_keeps_the_requested_snapshots_and_all_their_bases(
    chain: list[Snapshot], tmp_path: Path
) -> None:
    """S11"""
    full = save(tmp_path, 4, make_chunk(range(5)))
    assert retain(tmp_path, 2) == []
    more = save(tmp_path, 5, make_chunk(range(5)))
    assert retain(tmp_path, 2) == [each.url for each in reversed(chain)]
    assert list_snapshots(tmp_path) == [full.url, more.url]
    with pytest.raises(InvalidArgumentError, match="keep must be at least 2"):
        retain(tmp_path, 1)
    assert retain(tmp_path / "nowhere", 2) == []


def test_retention_keeps_a_new_save_next_to_snapshots_of_higher_steps(
    tmp_path: Path,
) -> None:
    """S11"""
    of_others = [save(tmp_path, step, make_chunk(range(5))) for step in (20, 22)]
    mine = []
    for step in (4, 8):
        base = mine[-1].url if mine else None
        mine.append(save(tmp_path, step, make_chunk(range(step)), base=base))
        retain(tmp_path, 2, newest=[each.url for each in mine])
        assert len(rows_by_key(open_snapshot(mine[-1].url))) == step
    # The two newest are one chain: another one is kept as well.
    assert list_snapshots(tmp_path) == [mine[0].url, mine[1].url, of_others[1].url]
    # Snapshots elsewhere do not count here, even if they have such a name.
    elsewhere = save(tmp_path / "elsewhere", 4, make_chunk(range(5)))
    more = [save(tmp_path, step, make_chunk(range(5))) for step in (23, 24)]
    retain(tmp_path, 2, newest=[elsewhere.url])
    assert list_snapshots(tmp_path) == [each.url for each in more]


def test_no_single_file_removes_all_kept_snapshots(tmp_path: Path) -> None:
    """S11"""
    url = None
    for step in range(1, 21):
        is_full = step % 6 == 1
        newest = save(tmp_path, step, make_chunk(range(5)), base=None if is_full else url)
        url = newest.url
        retain(tmp_path, 3)
        if step < 7:
            continue
        for damaged in tmp_path.glob("*/rows.*"):
            data = damaged.read_bytes()
            damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            assert any(
                verify_snapshot(open_snapshot(each)).is_sound for each in list_snapshots(tmp_path)
            )
            damaged.write_bytes(data)
    assert [open_snapshot(each).step for each in list_snapshots(tmp_path)] == [13, *range(14, 21)]


def test_damaged_snapshots_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    """S11"""
    made = [save(tmp_path, step, make_chunk(range(5))) for step in range(1, 6)]
    over = save(tmp_path, 6, make_chunk(range(3)), base=made[-1].url)
    assert retain(tmp_path, 2, damaged=[made[-1].url]) == [made[1].url, made[0].url]
    assert list_snapshots(tmp_path) == [each.url for each in (*made[2:], over)]


def test_pinned_snapshots_stay_with_their_bases(tmp_path: Path) -> None:
    base = save(tmp_path, 1, make_chunk(range(5)))
    best = save(tmp_path, 2, make_chunk(range(3)), base=base.url)
    made = [save(tmp_path, step, make_chunk(range(5))) for step in range(3, 7)]
    assert retain(tmp_path, 2, pinned=[best.url]) == [made[1].url, made[0].url]
    assert list_snapshots(tmp_path) == [each.url for each in (base, best, *made[2:])]
    assert retain(tmp_path, 2) == [best.url, base.url]


def test_retention_removes_dead_attempts_and_counts_no_damaged_snapshot(tmp_path: Path) -> None:
    for step in range(1, 5):
        save(tmp_path, step, make_chunk(range(5)))
    (tmp_path / "step-000000004" / "manifest.json").write_text("{}")
    dead = SnapshotWriter(str(tmp_path / "step-000000009"), step=9)
    dead.write_table(ITEM, [make_chunk([1])])
    assert retain(tmp_path, 2) == [str(tmp_path / "step-000000001")]
    assert len(list(tmp_path.glob(".step-000000009.*"))) == 1
    retain(tmp_path, 2, stale_seconds=0)
    assert not list(tmp_path.glob(".*"))
    assert (tmp_path / "step-000000004").is_dir()


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("change", ["flip", "remove manifest", "remove file", "remove"])
def test_a_change_of_an_opened_chain_is_noticed(
    chain: list[Snapshot], place: int, change: str
) -> None:
    time.sleep(0.11)  # Snapshots that were written just now are not remembered.
    newest = chain[-1].url
    assert open_snapshot(newest) is open_snapshot(newest)
    folder = Path(chain[place].url)
    manifest = folder / "manifest.json"
    if change == "flip":
        text = manifest.read_bytes()
        manifest.write_bytes(text.replace(b'"step": ', b'"step":9', 1))
    elif change == "remove manifest":
        manifest.unlink()
    elif change == "remove file":
        next(folder.glob("rows.*")).unlink()
    else:
        shutil.rmtree(folder)
    with pytest.raises(SnapshotError):
        open_snapshot(newest)


def test_a_base_with_the_same_name_is_not_used(chain: list[Snapshot]) -> None:
    time.sleep(0.11)
    assert open_snapshot(chain[-1].url).chain[-1].step == 1
    shutil.rmtree(chain[0].url)
    save(Path(chain[0].url).parent, 1, make_chunk(range(5)))
    with pytest.raises(SnapshotError, match="the base was replaced"):
        open_snapshot(chain[-1].url)
