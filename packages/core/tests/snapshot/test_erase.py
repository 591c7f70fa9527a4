"""Keys are removed from all snapshots of a folder, which can be loaded after any interruption."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions, State
from sparring.contracts.tables.admission import Bloom, Frequency
from sparring.contracts.tables.table import TableConfig
from sparring.engine.checkpoint.container_state import state_without_keys
from sparring.errors import SnapshotError
from sparring.snapshot.erase import ErasedSnapshots, erase_from_snapshots
from sparring.snapshot.place.local import LocalRoot
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import list_snapshots
from sparring.snapshot.writer import SnapshotWriter
from sparring_cli.snapshots.verify import verify_snapshot
from sparring_testing.processes.table_steps import open_tables, read_snapshot, train_ids

GONE = [7_777_777_777_777_001, -8_888_888_888_888_002]
"""Large: eight bytes that come by chance are unlikely."""

OTHERS = ("other", "counted", "bloom")

COUNTED = 7_777_777_777_777_003
"""Seen once by a filter that wants two steps."""


class Interrupted(BaseException):
    """As if the process had been killed."""


TABLES = (
    TableConfig("t", 2, expire={"after_steps": 1000}),
    TableConfig("other", 2),
    TableConfig("counted", 2, admission=Frequency(2)),
    TableConfig("bloom", 2, admission=Bloom(2, expected_keys=100)),
)


def a_chain(root: Path) -> dict[int, dict[int, bytes]]:
    """Three snapshots, two of them deltas, and one on its own. Returns rows of `t` by step."""
    options, rows, base = SaveOptions(is_base=True, index_keys=True), {}, None
    with open_tables(*TABLES) as made:
        for step, ids in enumerate(([*range(40), *GONE], [1, 2, COUNTED], [3, GONE[0]]), 1):
            train_ids(made, {table.name: ids for table in TABLES})
            if step == 2:
                made.storage("t").erase([GONE[1], 39])
            url = str(root / f"step-{step}")
            made.save(url, base=base, options=options, states={"mine": State({"a": step})})
            rows[step], base = read_snapshot(url, "t"), url
        train_ids(made, {table.name: [5] for table in TABLES})
        made.save(str(root / "step-4"), states={"mine": State({"a": 4})})
        rows[4] = read_snapshot(str(root / "step-4"), "t")
    return rows


def erase(root: Path, table: str = "t", keys: Iterable[int] = GONE) -> ErasedSnapshots:
    wanted = np.array(list(keys), np.int64)
    return erase_from_snapshots(
        str(root), table, wanted, lambda name, state: state_without_keys(name, state, table, wanted)
    )


def has_bytes_of(root: Path, key: int) -> bool:
    pattern = np.int64(key).tobytes()
    return any(pattern in each.read_bytes() for each in root.rglob("*") if each.is_file())


def check_whole(root: Path, expected: dict[int, dict[int, bytes]]) -> None:
    """Checks that each step has an intact snapshot with all rows except the erased ones."""
    found: dict[int, Any] = {}
    for url in list_snapshots(str(root)):
        assert verify_snapshot(open_snapshot(url)).is_sound
        found[open_snapshot(url).step] = {
            key: row for key, row in read_snapshot(url, "t").items() if key not in GONE
        }
    assert found == {
        step: {key: row for key, row in rows.items() if key not in GONE}
        for step, rows in expected.items()
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_no_file_contains_the_bytes_of_an_erased_key(root: Path) -> None:
    expected = a_chain(root)
    assert has_bytes_of(root, GONE[0])
    assert has_bytes_of(root, GONE[1])
    others = {table: read_snapshot(str(root / "step-4"), table) for table in OTHERS}
    (root / ".step-9.dead").mkdir()  # an attempt to save that was killed
    (root / ".step-9.dead" / "rows").write_bytes(np.array(GONE).tobytes())
    for table in others:
        erase(root, table)
    result = erase(root)
    assert not has_bytes_of(root, GONE[0])
    assert not has_bytes_of(root, GONE[1])
    check_whole(root, expected)
    assert result.num_rows == 4
    assert len(result.replaced) == len(list_snapshots(str(root))) == 4
    newest = list_snapshots(str(root))[-1]
    for table, rows in others.items():
        kept = {key: row for key, row in rows.items() if key not in GONE}
        assert read_snapshot(newest, table) == kept
    assert open_snapshot(newest).state("mine").values == {"a": 4}


def test_a_run_continues_from_the_rewritten_snapshot(root: Path) -> None:
    a_chain(root)
    erase(root)
    with open_tables(*TABLES) as made:
        loaded = made.load(str(root / "step-3.e1"))
        assert list(loaded.states) == ["mine"]
        assert made.counters.steps == 3
        assert not made.storage("t").find(GONE).found.any()
        visits = made.entry("t").visits
        assert visits is not None
        assert not np.isin(GONE, visits.keys).any()
        assert 3 in visits.keys


def test_counters_of_admission_lose_the_key_and_keep_the_others(root: Path) -> None:
    a_chain(root)
    assert has_bytes_of(root, COUNTED)
    for table in ("t", "other", "bloom"):
        erase(root, table, [COUNTED])
    assert has_bytes_of(root, COUNTED)
    erase(root, "counted", [COUNTED])
    assert not has_bytes_of(root, COUNTED)
    with open_tables(*TABLES) as made:
        name = next(each for each in list_snapshots(str(root)) if open_snapshot(each).step == 3)
        made.load(name)
        before = made.num_rows("counted")
        # 7 was seen once before, and is admitted.
        train_ids(made, {table.name: [COUNTED, 7] for table in TABLES})
        assert made.num_rows("counted") == before + 1


def test_snapshots_without_the_key_are_unchanged(root: Path) -> None:
    a_chain(root)
    before = list_snapshots(str(root))
    result = erase(root, "t", [123_456_789])
    assert (list_snapshots(str(root)), result.replaced, result.num_rows) == (before, {}, 0)
    assert sorted(result.clean) == sorted(before)


@pytest.mark.parametrize("number", [0, 2, 4, 7])
def test_after_a_kill_at_any_point_all_can_be_loaded_and_a_second_run_finishes(
    number: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = a_chain(root)
    calls = 0

    def killing(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number + 1:
                raise Interrupted
            return method(*arguments)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotWriter, "commit", killing(SnapshotWriter.commit))
        patched.setattr(SnapshotWriter, "abandon", lambda *_: None)  # a killed process cannot
        patched.setattr(LocalRoot, "remove", killing(LocalRoot.remove))
        with pytest.raises(Interrupted):
            erase(root)
    check_whole(root, expected)
    erase(root)
    check_whole(root, expected)
    assert len(list_snapshots(str(root))) == 4
    assert not any(GONE[0] in read_snapshot(url, "t") for url in list_snapshots(str(root)))


def test_an_unreadable_snapshot_is_named_and_nothing_changes(root: Path) -> None:
    a_chain(root)
    before = list_snapshots(str(root))
    (root / "step-4" / "manifest.json").write_text("{}")
    with pytest.raises(SnapshotError, match="step-4"):
        erase(root)
    assert list_snapshots(str(root)) == before[:3]


def test_a_table_that_is_in_no_snapshot_is_rejected(root: Path) -> None:
    a_chain(root)
    before = list_snapshots(str(root))
    with pytest.raises(SnapshotError, match=r"has a table 'T'; choose one of .*, t"):
        erase(root, "T")
    assert list_snapshots(str(root)) == before


def test_a_chain_of_two_ranks_keeps_the_state_of_both(root: Path) -> None:
    shutil.copytree(Path(__file__).parent / "format_v1", root)
    before = read_snapshot(str(root / "delta"), "half")
    result = erase(root, "half", [3])
    assert result.num_rows == 2
    delta = open_snapshot(str(root / "delta.e1"))
    assert (delta.world_size, len(delta.chain)) == (2, 2)
    assert [delta.state("of_rank", rank).values for rank in (0, 1)] == [{"rank": 0}, {"rank": 1}]
    assert read_snapshot(delta.url, "half") == {key: row for key, row in before.items() if key != 3}
    assert 3 in read_snapshot(delta.url, "wide")
