"""The versions of a table equal a dictionary per version, for any ranks, deltas and file system."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring import ScanChunk, Snapshot, SnapshotWriter, TableDescription
from sparring.adapter import erase_from_snapshots, state_without_keys
from sparring.contracts import partition
from sparring.snapshot.row_router import SnapshotOptions
from sparring_cli.application import main
from sparring_cli.snapshots.difference import compare_tables
from sparring_train.run.history import describe_version, list_versions
from sparring_train.run.row_changes import find_changes, find_row
from sparring_train.run.same_run import RUN

ITEM = TableDescription("item", 2, state_width=1, state_method="adagrad")
KEYS = [-(2**63), -1, 0, 3, 7, 2**63 - 1]
NUMBERS = itertools.count()

Rows = dict[int, list[float]]


def write(
    root: str,
    step: int,
    rows: Rows,
    erased: set[int] | None = None,
    *,
    base: Snapshot | None = None,
    previous: str | None = None,
    world_size: int = 1,
    is_indexed: bool = True,
    time: float | None = None,
) -> Snapshot:
    """Writes a version. Each rank writes the keys of its partitions."""
    options = SnapshotOptions(index_keys=is_indexed)
    writers = [
        SnapshotWriter(
            f"{root}/step-{step:03d}",
            step=step,
            rank=rank,
            world_size=world_size,
            base=None if base is None else base.url,
            token=f"token-{step}",
            options=options,
        )
        for rank in range(world_size)
    ]
    for writer in writers:
        keys = [key for key in rows if owner(key, world_size) == writer.rank]
        gone = [key for key in erased or () if owner(key, world_size) == writer.rank]
        values = np.array([rows[key] for key in keys], np.float32).reshape(-1, 3)
        chunk = ScanChunk(np.array(keys, np.int64), values, np.zeros(len(keys), np.uint64))
        writer.write_table(ITEM, [chunk], [np.array(gone, np.int64)] if gone else [])
        if writer.rank == 0:
            described = describe_version(previous)
            described["saved"]["time"] = 1000.0 * step if time is None else time
            writer.write_state(RUN, described)
        writer.finish()
    return writers[0].commit()


def owner(key: int, world_size: int) -> int:
    return int(partition(np.array([key], np.int64))[0]) % world_size


Step = tuple[dict[int, float], bool, int, bool]
"""Key → new value or NaN to erase it; whether the version is full; ranks; whether it has an index."""
STEPS = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from(KEYS), st.sampled_from([1.0, 2.0, float("nan")]), max_size=4
        ),
        st.booleans(),
        st.sampled_from([1, 2, 3]),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def build(root: str, steps: list[Step]) -> list[Rows]:
    """Writes the versions, and returns the rows of each."""
    rows: Rows = {}
    every: list[Rows] = []
    last: Snapshot | None = None
    for number, (changes, is_full, world_size, is_indexed) in enumerate(steps, 1):
        updated = {
            key: [value, 0.5, number] for key, value in changes.items() if not math.isnan(value)
        }
        gone = {key for key, value in changes.items() if math.isnan(value)} & rows.keys()
        rows = {key: row for key, row in (rows | updated).items() if key not in gone}
        base = None if is_full else last
        last = write(
            root, number, updated if base else rows, gone if base else None, base=base,
            previous=last and last.name, world_size=world_size, is_indexed=is_indexed,
        )  # fmt: skip
        every.append(rows)
    return every


@settings(max_examples=12, deadline=None)
@given(STEPS)
def test_versions_equal_a_dictionary_each(steps: list[Step]) -> None:
    root = f"memory://history/{next(NUMBERS)}"
    every = build(root, steps)
    versions = list_versions(root)
    assert [each.step for each in versions] == [*range(1, len(steps) + 1)]
    for key in KEYS:
        values = [rows.get(key) for rows in every]
        for version, value in zip(versions, values, strict=True):
            found = find_row(version, "item", key)
            assert (None if found is None else found.rows[0].tolist()) == value
        expected = [
            (step, "found" if step == 1 else kind_of(before, after))
            for step, (before, after) in enumerate(itertools.pairwise([None, *values]), 1)
            if before != after
        ]
        changes, searched = find_changes(root, "item", key)
        assert [(each.snapshot.step, each.kind) for each in changes] == expected
        assert len(searched) == len(steps)
    before, after = every[0], every[-1]
    found = compare_tables(versions[0], versions[-1], "item", 2)
    both = before.keys() & after.keys()
    moved = {key: abs(after[key][0] - before[key][0]) for key in both}
    assert found.num_rows == [len(before), len(after)]
    assert found.num_created == len(after.keys() - both)
    assert found.num_erased == len(before.keys() - both)
    assert found.num_changed == sum(before[key] != after[key] for key in both)
    assert found.num_moved == sum(map(bool, moved.values()))
    largest = sorted(((far, key) for key, far in moved.items() if far), reverse=True)[:2]
    assert [(each.moved, each.key) for each in found.most_moved] == largest


def kind_of(before: list[float] | None, after: list[float] | None) -> str:
    return "created" if before is None else "removed" if after is None else "changed"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Three versions: a full one, a delta, and a full one after an abandoned delta."""
    folder = str(tmp_path / "run")
    first = write(folder, 1, {7: [1, 0, 1], 8: [1, 0, 1]})
    second = write(folder, 2, {7: [3, 4, 2]}, {8}, base=first, previous="step-001")
    write(folder, 3, {7: [9, 9, 9]}, base=second, previous="step-002")
    write(folder, 4, {7: [3, 4, 4]}, previous="step-002", world_size=2)
    return folder


def output_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_commands_show_versions(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = output_of(capsys, "blame", root, "item", "7")
    assert found["versions"] == 3  # Without the abandoned one.
    assert [(each["step"], each["change"], each["moved"]) for each in found["changes"]] == [
        (1, "found", None),
        (2, "changed", np.hypot(2, 4)),
        (4, "changed", 0.0),
    ]
    assert (found["changes"][1]["norm"], found["changes"][1]["since_step"]) == (5.0, 1)
    assert main(["blame", f"{root}/step-003", "item", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["found", "removed"]
    assert output_of(capsys, "blame", root, "item", "9", code=3)["changes"] == []
    for at, step in (("1", 1), ("3", 2), ("@2999", 2), ("1970-01-01T00:16:40Z", 1), ("9999", 4)):
        assert output_of(capsys, "get", root, "item", "7", "--at", at)["step"] == step
    assert output_of(capsys, "get", root, "item", "8", "--at=1")["found"]
    assert not output_of(capsys, "get", root, "item", "8", "--at=2", code=3)["found"]
    found = output_of(capsys, "diff", f"{root}/step-001", root, "--top=1")["tables"]["item"]
    assert (found["rows"], found["erased"], found["changed"]) == ([2, 1], 1, 1)
    assert found["most_moved"] == [{"key": 7, "moved": np.hypot(2, 4), "norm": [1.0, 5.0]}]


def test_an_erased_key_is_in_no_version(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    keys = np.array([7], np.int64)
    found = erase_from_snapshots(
        root, "item", keys, lambda name, state: state_without_keys(name, state, "item", keys)
    )
    assert (found.num_rows, found.keys) == (4, {7})
    versions = list_versions(root)
    assert [each.name for each in versions] == ["step-001.e1", "step-002.e1", "step-004.e1"]
    assert "changed_keys" in versions[1].state_names()
    for at in ("1", "2", "4"):
        assert not output_of(capsys, "get", root, "item", "7", "--at", at, code=3)["found"]
    assert output_of(capsys, "blame", root, "item", "7", code=3)["changes"] == []
    changes = output_of(capsys, "blame", root, "item", "8")["changes"]
    assert [each["change"] for each in changes] == ["found", "removed"]
    indexes = [each.state("changed_keys").arrays["keys.item"] for each in versions if each.base]
    assert [each.tolist() for each in indexes] == [[8]]


def test_a_receipt_lists_stored_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = SnapshotWriter(f"{tmp_path}/run/step-1", step=1)
    writer.write_table(ITEM, [])
    writer.finish()
    writer.commit()
    (tmp_path / "run" / "open_impressions").mkdir()
    (tmp_path / "ids.txt").write_text("7\n")
    words = ["erase", "item", "--snapshots", f"{tmp_path}/run", "--yes"]
    paths = [f"--keys={tmp_path}/ids.txt", f"--output={tmp_path}/receipt.json"]
    found = output_of(capsys, *words, *paths)
    assert any("run/open_impressions" in each["place"] for each in found["remains"])
    assert any("recorded cuts" in each and "offsets" in each for each in found["traces"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "ROOT", "item", "7", "--at=0"], "the oldest kept version is of step 1"),
        (["get", "ROOT", "item", "7", "--at=@5"], "is of 1970-01-01T00:16:40Z; give a later"),
        (["get", "ROOT", "item", "7", "--at=noon"], "expected a step, a time such as"),
        (["get", "run.yaml", "item", "7", "--at=1"], "a storage has no versions"),
        (["get", "OTHER", "item", "7", "--at=@1"], "found no time in the 1 snapshots"),
        (["blame", "ROOT", "user", "7"], "has no table 'user'; choose one of its tables: item"),
        (["blame", "ROOT/none", "item", "7"], "there is no snapshot"),
        (["diff", "ROOT", "OTHER", "--table=user"], "found no table 'user' in"),
        (["diff", "ROOT", "OTHER"], "has dim 2 in"),
    ],
)
def test_wrong_arguments_are_explained(
    words: list[str], message: str, root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = SnapshotWriter(f"{tmp_path}/other/step-1", step=1)
    writer.write_table(TableDescription("item", 5), [])
    writer.finish()
    writer.commit()
    names = {"ROOT": root, "OTHER": f"{tmp_path}/other", "ROOT/none": f"{root}/none"}
    assert main([names.get(each, each) for each in words]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
