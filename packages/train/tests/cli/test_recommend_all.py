"""`sparring recommend --output`: parts of recommendations for all users."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')
pytest.importorskip("sparring_packed", reason="pip install sparring-packed")

from sparring import latest_snapshot, make_plugin_manager
from sparring.errors import DataError, InvalidArgumentError
from sparring_cli.application import main
from sparring_train.recommend import all_users
from sparring_train.recommend.part_files import PartFolder
from sparring_train.recommend.row_blocks import RowBlocks
from sparring_train.recommend.seen_items import SeenItems
from sparring_train.run.saved_run import read_run_config

BASE = """
seed: 1
threads: 1
data: {kind: table, path: log.parquet, batch_size: 64, categorical: [user_id, item_id, brand, group],
       required: [user_id, item_id], dictionary: true}
storage: {backend: memory}
optimizer: {sparse: {name: adagrad, lr: 0.3}, dense: {name: adam, lr: 0.01}}
training: {epochs: 2}
"""
MODELS = {
    "towers": [
        "model={kind: two_towers, embedding_dim: 8, user: [user_id, group], item: [item_id, brand]}"
    ],
    "plain": ["model={kind: two_towers, embedding_dim: 8, user: [user_id], item: [item_id]}"],
    "sequence": [
        "model={kind: sequence, embedding_dim: 8, item: item_id, user: user_id}",
        "data.history={of: item_id, by: user_id, length: 20}",
        "data.time=at",
        "data.split={leave_one_out: user_id}",
    ],
}
NUM_USERS, NUM_ITEMS, K = 23, 40, 6


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(scope="module")
def log() -> pyarrow.Table:
    random = np.random.default_rng(5)
    users, items = random.integers(0, (NUM_USERS, NUM_ITEMS), (600, 2)).T
    return pyarrow.table(
        {
            "user_id": [f"user {each}" for each in users],
            "item_id": items * 3,
            "brand": [f"b{each % 3}" for each in items],
            "group": [f"g{each % 4}" for each in users],
            "at": np.arange(600),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, log: pyarrow.Table) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("all")
    parquet.write_table(log, made / "log.parquet")
    (made / "run.yaml").write_text(BASE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for name, overrides in MODELS.items():
            assert main(["train", "run.yaml", *overrides, f"snapshots.url={name}"]) == 0
        yield made


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.parametrize("name", MODELS)
def test_each_row_equals_the_command_for_one_user(
    name: str, ask: Any, tmp_path: Path, log: pyarrow.Table
) -> None:
    told = ask("recommend", name, "--all-users", "-o", tmp_path / "o", "-k", K, "--new")
    assert (told["users"], told["is_complete"]) == (NUM_USERS, True)
    rows = parquet.read_table(tmp_path / "o").to_pylist()
    assert sorted(row["user_id"] for row in rows) == sorted(set(log["user_id"].to_pylist()))
    for row in rows[:4]:
        options = ["--user", row["user_id"], "-k", K, "--new", "--index", "exact"]
        items = ask("recommend", name, *options)["items"]
        assert row["item_id"] == [each["item"] for each in items]
        assert row["score"] == pytest.approx([each["score"] for each in items], rel=1e-4, abs=1e-6)


def test_parts_of_workers_and_restarts_have_the_same_bytes(
    ask: Any, tmp_path: Path, folder: Path
) -> None:
    users = pyarrow.table(
        {
            "group": [f"g{each % 4}" for each in range(NUM_USERS)],
            "user_id": [f"user {each}" for each in range(NUM_USERS)],
        }
    )
    (folder / "users").mkdir(exist_ok=True)
    parquet.write_table(users.slice(0, 9), folder / "users/0.parquet", row_group_size=4)
    parquet.write_table(users.slice(9), folder / "users/1.parquet", row_group_size=3)
    asked = ["recommend", "towers", "--users", "users", "-k", K, "--part-users", 4]
    assert ask(*asked, "-o", tmp_path / "whole")["parts"] == 6
    whole = contents(tmp_path / "whole")
    assert sum(name.startswith("part-") for name in whole) == 6
    manifest = json.loads(whole["_manifest.json"])
    for entry in manifest["parts"]:
        assert entry["name"] == f"part-{entry['name'][5:11]}-{entry['xxh3_128']}.parquet"
        assert entry["bytes"] == len(whole[entry["name"]])
    table = parquet.read_table(tmp_path / "whole")
    assert table["user_id"].to_pylist() == users["user_id"].to_pylist()
    shares = ["1/3", "0/3", "2/3"]
    told = [ask(*asked, "-o", tmp_path / "shared", "--parts", share) for share in shares]
    assert [each["is_complete"] for each in told] == [False, False, True]
    assert contents(tmp_path / "shared") == whole
    # A part is missing, one is damaged, and a process died while it wrote.
    first, second, *_ = sorted(name for name in whole if name.startswith("part-"))
    (tmp_path / "whole" / first).unlink()
    (tmp_path / "whole" / second).write_bytes(whole[second][:-1] + b"?")
    assert ask(*asked, "-o", tmp_path / "whole")["computed"] == 2
    assert contents(tmp_path / "whole") == whole
    refused = ask(*asked, "-o", tmp_path / "whole", "-k", K + 1)
    assert f"contains parts of another result: k: {K} there, {K + 1} here" in refused


def test_items_are_filtered_and_interactions_excluded(
    ask: Any, tmp_path: Path, folder: Path
) -> None:
    price = np.arange(NUM_ITEMS) * 1.5
    items = pyarrow.table(
        {"item_id": np.arange(NUM_ITEMS) * 3, "price": price, "is_new": price > 30}
    )
    parquet.write_table(items, folder / "items.parquet")
    pairs = pyarrow.table({"user_id": ["user 1", "user 1"], "item_id": [6, 9]})
    parquet.write_table(pairs, folder / "pairs.parquet")
    asked = ["recommend", "plain", "--all-users", "--items", "items.parquet"]
    ask(
        *asked, "-k", 50, "-o", tmp_path / "o", "--exclude", "pairs.parquet", "--where", "price<= 9"
    )
    for row in parquet.read_table(tmp_path / "o").to_pylist():
        allowed = {0, 3, 6, 9, 12, 15, 18} - ({6, 9} if row["user_id"] == "user 1" else set())
        assert set(row["item_id"]) == allowed
    # Another selection or other pairs, in a file with the same name and size, do not continue the result.
    same = [*asked, "-k", 50, "-o", tmp_path / "o", "--exclude", "pairs.parquet"]
    assert "another result: selected_items" in ask(*same, "--where", "price<= 12")
    parquet.write_table(pairs.set_column(1, "item_id", [[6, 8]]), folder / "pairs.parquet")
    assert "another result: excluded_pairs" in ask(*same, "--where", "price<= 9")
    for condition, message in (
        ("price=cheap", "comparing column 'price' of type double with 'cheap' failed"),
        ("price", "expected COLUMN=VALUE"),
        ("is_new==maybe", "with 'maybe' failed"),
        ("color=red", "column 'color' is missing"),
        ("price>999", "no item is left"),
    ):
        assert message in ask(*asked, "-o", tmp_path / "x", "--where", condition)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("factory", "least"), [("Flat", 1.0), ("HNSW32", 0.9), ("IVF8,Flat", 0.1)])
def test_an_index_of_faiss_reports_the_recall_of_its_output(
    ask: Any, tmp_path: Path, factory: str, least: float
) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed; see nox -s engines")
    asked = ["recommend", "plain", "--all-users", "-k", K, "--new"]
    told = ask(*asked, "-o", tmp_path / "o", "--index", "faiss", "--factory", factory)
    ask(*asked, "-o", tmp_path / "exact")
    found, exact = (
        {row["user_id"]: {*row["item_id"]} for row in parquet.read_table(folder).to_pylist()}
        for folder in (tmp_path / "o", tmp_path / "exact")
    )
    hits = sum(len(found[user] & items) for user, items in exact.items())
    assert told["recall"] == pytest.approx(hits / sum(map(len, exact.values())))
    assert least <= told["recall"] <= 1
    assert factory != "IVF8,Flat" or told["recall"] < 0.9  # one of eight lists is searched


def test_errors_say_how_to_fix_the_command(ask: Any, tmp_path: Path, folder: Path) -> None:
    bad = {
        "no_group": {"user_id": ["user 1"]},
        "numbers": {"user_id": [1], "group": ["g1"]},
        "no_user": {"user_id": ["user 1", None], "group": ["g1", "g2"]},
    }
    for name, columns in bad.items():
        parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    for name, message in (
        ("no_group", "column 'group' is missing, found user_id"),
        ("numbers", "column 'user_id': found whole numbers, expected strings"),
        ("no_user", "row 2, column 'user_id': found None, expected an id"),
    ):
        refused = ask("recommend", "towers", "--users", f"{name}.parquet", "-o", tmp_path / name)
        assert message in refused, refused
    assert "expected --output together with" in ask("recommend", "plain", "--all-users")
    asked = ["recommend", "plain", "--all-users", "-o", tmp_path / "o"]
    assert "--parts: found '3/2'" in ask(*asked, "--parts", "3/2")
    assert "--factory: found HNSW32" in ask(*asked, "--factory", "HNSW32")
    one = ["recommend", "plain", "--user", "user 1", "--parts", "0/2"]
    assert "--parts are options for all users" in ask(*one)
    keys = ["neighbors", "plain", "item_id"]
    assert "add --all" in ask(*keys, 3, "--parts", "0/2")
    assert "is an option for one key" in ask(
        *keys, "--all", "-o", tmp_path / "n", "--index", "faiss"
    )
    assert "--user is an option for one user" in ask(*asked, "--user", "user 1")


@pytest.mark.parametrize("wrong", [{"k": 0}, {"part_rows": 0}])
def test_wrong_options_are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected at least 1"):
        all_users.RecommendationOptions(**wrong)


def test_a_missing_package_is_reported_with_the_command_to_install_it(
    ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_users, "find_spec", lambda name: None)
    refused = ask("recommend", "plain", "--all-users", "-o", tmp_path / "o")
    assert "pip install 'sparring-train[ranking]'" in refused


def test_predictions_and_neighbors_of_all_rows_equal_the_other_commands(
    ask: Any, tmp_path: Path, folder: Path, log: pyarrow.Table
) -> None:
    model = "model={kind: matrix_factorization, dim: 4, user: user_id, item: item_id}"
    rated = log.append_column("rating", pyarrow.array(np.arange(600) % 5 + 1))
    parquet.write_table(rated, folder / "rated.parquet", row_group_size=250)
    asked = ["data.path=rated.parquet", "data.label=rating", model, "snapshots.url=rated"]
    assert main(["train", "run.yaml", *asked]) == 0
    to_file = ["predict", "rated", "rated.parquet", "-o", str(tmp_path / "one.parquet")]
    assert main(to_file) == 0
    assert main([*to_file, "--parts", "0/2"]) != 0
    assert main([*to_file[:-1], "s3://bucket/one.parquet"]) != 0
    parts_of = [
        "predict",
        "rated",
        "rated.parquet",
        "-o",
        f"{tmp_path}/parts/",
        "--part-rows",
        "130",
    ]
    assert main(parts_of) == 0
    assert len(list((tmp_path / "parts").glob("part-*.parquet"))) == 5
    one, parts = (parquet.read_table(tmp_path / name) for name in ("one.parquet", "parts"))
    assert parts["user_id"].to_pylist() == one["user_id"].cast("string").to_pylist()
    assert parts["prediction"].to_pylist() == pytest.approx(one["prediction"].to_pylist())

    asked = ["neighbors", "plain", "item_id", "-k", K]
    ask(*asked, "--all", "-o", tmp_path / "n", "--part-keys", 15)
    rows = parquet.read_table(tmp_path / "n").to_pylist()
    assert [row["key"] for row in rows] == [each * 3 for each in range(NUM_ITEMS)]
    for row in rows[:3]:
        found = ask(*asked, row["key"], "--index", "exact")["neighbors"]
        assert row["neighbors"] == [each["key"] for each in found]
        assert row["score"] == pytest.approx([each["score"] for each in found])
    assert "expected either KEY, or --all with --output" in ask(*asked)


def test_all_parts_have_the_type_that_fits_all_files(folder: Path) -> None:
    (folder / "mixed").mkdir()
    for name, kind, ids in (("a", "int32", [3, 6]), ("b", "int64", [9, 2**40]), ("c", "null", [])):
        users = pyarrow.table({"item_id": pyarrow.array(ids, kind), "at": pyarrow.nulls(len(ids))})
        parquet.write_table(users, folder / f"mixed/{name}.parquet")
    snapshot = latest_snapshot(str(folder / "plain"))
    assert snapshot is not None
    config = read_run_config(snapshot, (), make_plugin_manager())
    rows = RowBlocks(config, str(folder / "mixed"), ["item_id"], others=["at"])
    blocks = [rows.read(begin, begin + 1)[1]["item_id"] for begin in range(4)]
    assert [each.type for each in blocks] == [pyarrow.int64()] * 4
    assert rows.read(0, 4)[1]["item_id"].to_pylist() == [3, 6, 9, 2**40]
    parquet.write_table(
        pyarrow.table({"item_id": pyarrow.array([1], "uint64"), "at": [None]}),
        folder / "mixed/d.parquet",
    )
    with pytest.raises(DataError, match="write all files with one type"):
        RowBlocks(config, str(folder / "mixed"), ["item_id"])


def test_only_temporary_files_of_the_result_are_removed(tmp_path: Path) -> None:
    output = PartFolder(str(tmp_path))
    left = tmp_path / f".{output.write_part(0, b'rows')}.{'0f' * 8}"
    mine = tmp_path / ".netrc"
    for each in (left, mine):
        each.write_bytes(b"half")
        os.utime(each, (0, 0))
    (tmp_path / ".git").mkdir()
    os.utime(tmp_path / ".git", (0, 0))
    assert output.write_manifest(1)
    assert not left.exists()
    assert mine.exists()


def test_seen_items_without_features_are_not_confused_with_others() -> None:
    seen = SeenItems([(np.array([1, 1]), np.array([5, 7]))], np.array([5, 6, 7]))
    seen.renumber(np.array([5, 6, 7]), np.array([7]))
    assert seen.of(np.array([1]))[0].tolist() == [-1, 0]
