"""A snapshot of any sharding kind loads under any other, and training continues with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.admission import Frequency
from sparring.contracts.tables.expiry import Expiry
from sparring.contracts.tables.table import TableConfig
from sparring.engine.checkpoint.container_state import state_without_keys
from sparring.engine.container import StepContainer
from sparring.errors import InvalidArgumentError, SnapshotDamagedError
from sparring.kernels.functions import partition
from sparring.snapshot import chain
from sparring.snapshot.chain import count_rows, scan_rows
from sparring.snapshot.erase import erase_from_snapshots
from sparring.snapshot.format.manifest import Manifest, decode_text, encode_text
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import compact
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_cli.snapshots.verify import verify_snapshot
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.sharded_jobs import (
    DIM,
    KINDS,
    Rows,
    collect_pieces,
    join_pieces,
    open_container,
    train,
)
from sparring_testing.processes.table_steps import read_chunks

MORE = {"admission": Frequency(2), "expire": Expiry(after_steps=40)}
NAMES = list(KINDS)
NUM_STEPS = 3


def scanned(url: str, columns: ColumnBlock | None = None) -> Rows:
    """Returns the rows and scores of a snapshot."""
    return read_chunks(list(scan_rows(open_snapshot(url), "user", columns=columns)))


def saved(kind: str, world_size: int, url: str, base: str | None = None) -> None:
    """Trains with a sharding kind and saves; with a base, in two saves."""

    def body(collective: Collective) -> None:
        with open_container(collective, kind, **MORE) as container:
            half = NUM_STEPS - 1 if base else NUM_STEPS
            train(container, [collective.rank], steps=range(half))
            if base:
                container.save(base, options=SaveOptions(is_base=True))
                train(container, [collective.rank], steps=range(half, NUM_STEPS))
            result = container.save(url, base=base)
            assert result.base == base
            assert list(result.rows) == ["user"]

    run_ranks(world_size, body)


def alone(steps: int, world_size: int) -> Rows:
    with open_container(None, "", **MORE) as container:
        train(container, range(world_size), steps=range(steps))
        return join_pieces([collect_pieces(container)])


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        # Two others of each kind, so that each kind is also loaded twice.
        *(
            pytest.param(
                kind, [NAMES[i - 1], NAMES[i - 3]], marks=[] if i % 3 == 2 else pytest.mark.slow
            )
            for i, kind in enumerate(NAMES)
        ),
        *(pytest.param(kind, NAMES, marks=pytest.mark.long) for kind in NAMES),
    ],
)
def test_a_save_of_one_kind_is_loaded_and_continued_by_every_other(
    kind: str, others: list[str], tmp_path: Path
) -> None:
    url = str(tmp_path / "saved")
    saved(kind, 3, url)
    expected, after = alone(NUM_STEPS, 3), alone(NUM_STEPS + 2, 3)
    assert scanned(url) == expected
    assert len(after) > len(expected) > 10, "counts of admission decide of rows to come"
    for place, other in enumerate(others):
        world_size = (2, 4)[(place + NAMES.index(kind)) % 2]

        def body(collective: Collective, other: str = other) -> Any:
            with open_container(collective, other, **MORE) as container:
                loaded = container.load(url)
                assert container.counters.steps == NUM_STEPS
                before = collect_pieces(container)
                # The batches of the three ranks that saved, on those that there are.
                mine = range(collective.rank, 3, collective.world_size)
                train(container, mine, steps=range(NUM_STEPS, NUM_STEPS + 2))
                return before, collect_pieces(container), loaded.rows["user"]

        held = run_ranks(world_size, body)
        assert join_pieces([each[0] for each in held]) == expected
        assert join_pieces([each[1] for each in held]) == after
        copies = world_size if other == "data_parallel" else 1
        assert sum(each[2] for each in held) == len(expected) * copies
    with open_container(None, "", **MORE) as container:
        container.load(url)
        assert join_pieces([collect_pieces(container)]) == expected


@pytest.mark.parametrize("kind", ["column_wise", pytest.param("grid", marks=pytest.mark.slow)])
def test_full_filters_of_all_blocks_forget_the_same_keys_even_after_a_load(
    kind: str, tmp_path: Path
) -> None:
    url, method = str(tmp_path / "saved"), resolve_method("sgd")
    admission = Frequency(2, memory_bytes=1 << 16)

    def train_full(container: StepContainer, steps: range) -> Any:
        for step in steps:
            random = np.random.default_rng((step, container.collective.rank))
            found = container.lookup("user", random.integers(0, 20_000, 7_000))
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
            # The base rejects a step in which blocks would get different rows.
            choice = MethodChoice(method, parse_hyper(method, {}), step + 1)
            container.apply_methods({"user": choice})
        return collect_pieces(container), container.num_forgotten("user")

    def saves(collective: Collective) -> Any:
        with open_container(collective, kind, "sgd", admission=admission) as container:
            train_full(container, range(2))
            container.save(url)
            return train_full(container, range(2, 4))

    def loads(collective: Collective) -> Any:
        with open_container(collective, kind, "sgd", admission=admission) as container:
            container.load(url)
            return train_full(container, range(2, 4))

    before, after = run_ranks(2, saves), run_ranks(2, loads)
    assert sum(count for _, count in before) > 0
    assert set(join_pieces([each for each, _ in after])) == set(
        join_pieces([each for each, _ in before])
    )


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("row_wise", ["column_wise"]),
        pytest.param("column_wise", ["grid"], marks=pytest.mark.slow),
        pytest.param("grid", ["row_wise"], marks=pytest.mark.slow),
        *(
            pytest.param(each, ["row_wise", "column_wise", "grid"], marks=pytest.mark.long)
            for each in ("row_wise", "column_wise", "grid")
        ),
    ],
)
def test_deltas_are_saved_by_blocks_over_any_base(
    kind: str, others: list[str], tmp_path: Path
) -> None:
    """S10b: a base of one sharding kind and a delta of another, read whole and by columns."""
    root = [str(tmp_path / name) for name in ("base", "delta", "last", "full")]
    saved(kind, 3, root[0])
    expected = alone(NUM_STEPS, 3)
    for other in others:
        urls = [str(tmp_path / f"{other}-{name}") for name in ("first", "second")]

        def body(collective: Collective, other: str = other, urls: Any = urls) -> None:
            with open_container(collective, other, **MORE) as container:
                container.load(root[0], is_base=True)
                train(container, range(collective.rank, 3, 4), steps=[NUM_STEPS])
                container.save(urls[0], base=root[0], options=SaveOptions(is_base=True))
                for part in container.entry("user").parts:
                    if part.storage is not None:
                        keys = [key for key in (1, 2, 3) if key in read_chunks(part.storage.scan())]
                        part.storage.erase(np.array(keys, np.int64))
                container.save(urls[1], base=urls[0])

        run_ranks(4, body)
        after = alone(NUM_STEPS + 1, 3)
        assert after != expected
        assert scanned(urls[0]) == after
        kept = {key: row for key, row in after.items() if key not in (1, 2, 3)}
        assert kept != after
        assert scanned(urls[1]) == kept
        assert count_rows(open_snapshot(urls[1]), "user") == len(kept)
        block, table = ColumnBlock(1, 3), TableConfig("user", DIM, state_width=DIM)
        cut = {
            key: (block.cut(table, np.frombuffer(row, np.float32)[None]).tobytes(), score)
            for key, (row, score) in kept.items()
        }
        assert scanned(urls[1], block) == cut
        full = compact(urls[1], str(tmp_path / f"{other}-full"))
        assert scanned(full.url) == kept
        report = verify_snapshot(open_snapshot(urls[1]))
        assert (report.num_rows, report.problems) == ({"user": len(kept)}, ())


def test_rows_are_joined_in_windows_that_fit_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10b"""
    saved("grid", 4, str(tmp_path / "a"))
    expected = scanned(str(tmp_path / "a"))
    monkeypatch.setattr(chain, "_JOIN_BYTES", 200)
    parts = list(scan_rows(open_snapshot(str(tmp_path / "a")), "user"))
    assert len(parts) > 3
    assert scanned(str(tmp_path / "a")) == expected
    some = [int(key) for key in partition(np.array(sorted(expected)[:4]))]
    found = scan_rows(open_snapshot(str(tmp_path / "a")), "user", some)
    assert {int(key) for each in found for key in each.keys} >= set(sorted(expected)[:4])


def test_a_background_save_contains_the_blocks_of_one_step(tmp_path: Path) -> None:
    url = str(tmp_path / "a")

    def body(collective: Collective) -> None:
        with open_container(collective, "grid", **MORE) as container:
            train(container, [collective.rank], steps=range(NUM_STEPS))
            task = container.save(url, blocking=False)
            train(container, [collective.rank], steps=range(NUM_STEPS, NUM_STEPS + 2))
            task.result(20)

    run_ranks(4, body)
    assert scanned(url) == alone(NUM_STEPS, 4)


def test_keys_are_erased_from_snapshots_of_blocks(tmp_path: Path) -> None:
    saved("grid", 4, str(tmp_path / "b"), base=str(tmp_path / "a"))
    before = scanned(str(tmp_path / "b"))
    keys = sorted(before)[:5]
    erased = erase_from_snapshots(
        tmp_path,
        "user",
        np.array(keys),
        lambda name, state: state_without_keys(name, state, "user", np.array(keys)),
    )
    urls = list(erased.replaced.values())
    newest = max(urls, key=lambda url: open_snapshot(url).step)
    assert scanned(newest) == {key: row for key, row in before.items() if key not in keys}
    assert len(keys) <= erased.num_rows <= 2 * len(keys)


def test_snapshots_without_blocks_name_no_columns(tmp_path: Path) -> None:
    saved("table_row_wise", 2, str(tmp_path / "a"))
    text = (tmp_path / "a" / "manifest.json").read_bytes()
    assert b"columns" not in text
    manifest, _ = decode_text(text, Manifest)
    assert encode_text(manifest) == text


def test_a_snapshot_with_missing_columns_is_damaged(tmp_path: Path) -> None:
    """S10b, S14"""
    saved("column_wise", 2, str(tmp_path / "a"))
    path = tmp_path / "a" / "manifest.json"
    manifest, _ = decode_text(path.read_bytes(), Manifest)
    assert {file.columns for file in manifest.files if file.kind == "rows"} == {(0, 2), (2, 4)}
    for gone in (0, 2):
        left = [file for file in manifest.files if file.columns is None or file.columns[0] != gone]
        path.write_bytes(encode_text(manifest.model_copy(update={"files": left})))
        with pytest.raises(SnapshotDamagedError, match="only some of their columns"):
            scanned(str(tmp_path / "a"))
    wider = [
        file.model_copy(update={"columns": (2, 5)}) if file.columns == (2, 4) else file
        for file in manifest.files
    ]
    path.write_bytes(encode_text(manifest.model_copy(update={"files": wider})))
    with pytest.raises(SnapshotDamagedError, match=r"columns \(2, 5\), .* table 'user' with dim 4"):
        open_snapshot(str(tmp_path / "a"))


def test_unknown_columns_of_a_table_are_rejected(tmp_path: Path) -> None:
    saved("row_wise", 2, str(tmp_path / "a"))
    for columns in (ColumnBlock(0, 5), ColumnBlock(2, 2)):
        with pytest.raises(
            InvalidArgumentError, match="columns of table 'user' must be within 0 to 3"
        ):
            scan_rows(open_snapshot(str(tmp_path / "a")), "user", columns=columns)
