"""`sparring recommend` agrees with the model that the run trained, for every kind of model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')
pytest.importorskip("sparring_packed", reason="pip install sparring-packed")

from sparring import hash_strings, latest_snapshot, make_plugin_manager
from sparring_cli.application import main
from sparring_train.run.saved_run import open_run

BASE = """
seed: 1
threads: 1
data: {kind: table, path: log.csv, label: rating, batch_size: 64, numeric: [price, age], log1p: [price],
       categorical: [user_id, item_id, brand, tags, group], lists: [tags], separator: "|",
       required: [user_id, item_id], missing_values: ["-"], types: {user_id: string}, dictionary: true}
storage: {backend: memory}
optimizer: {sparse: {name: adagrad, lr: 0.3}, dense: {name: adam, lr: 0.01}}
training: {epochs: 2}
"""
CLICKS = "data.label=clicked"
MODELS = {
    "dlrm": ["model={kind: dlrm, embedding_dim: 4, bottom_mlp: [4], top_mlp: [8]}", CLICKS],
    "deepfm": ["model={kind: deepfm, embedding_dim: 4, hidden_layer: 8, deep_layer: 8}", CLICKS],
    "factors": ["model={kind: matrix_factorization, dim: 4, user: user_id, item: item_id}"],
    "towers": [
        "model={kind: two_towers, embedding_dim: 8, user: [user_id, group], "
        "item: [item_id, brand, tags]}",
        "data.label=null",
    ],
    "sequence": [
        "model={kind: sequence, embedding_dim: 8, item: item_id, user: user_id}",
        "data.history={of: item_id, by: user_id, length: 20}",
        "data.time=at",
        "data.split={leave_one_out: user_id}",
        "data.label=null",
    ],
}
NUM_USERS, NUM_ITEMS = 20, 12


def features_of(user: int, item: int) -> dict[str, Any]:
    return {
        "user_id": f"user {user}",
        "item_id": f"SKU_{item}",
        "brand": f"b{item % 3}" if item % 4 else "-",
        "tags": f"t{item % 2}|t{item % 5}",
        "group": f"g{user % 4}",
        "price": 10.0 ** (item % 5),
        "age": 20 + user % 7,
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = [",".join(map(str, row.values())) for row in rows]
    path.write_text("\n".join([",".join(rows[0]), *lines, ""]))


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Rows of users and items in the order of their times, except that the last row is first."""
    random = np.random.default_rng(5)
    pairs = random.integers(0, (NUM_USERS, NUM_ITEMS), (900, 2)).tolist()
    made = [
        {
            **features_of(user, item),
            "at": at,
            "clicked": int((user + item) % 2 == 0),
            "rating": 1 + (user + item) % 5,
        }
        for at, (user, item) in enumerate(pairs)
    ]
    return made[300:] + made[:300]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> Iterator[Path]:
    """One trained run for each kind of model."""
    made = tmp_path_factory.mktemp("recommended")
    write_rows(made / "log.csv", rows)
    (made / "run.yaml").write_text(BASE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for name, overrides in MODELS.items():
            assert main(["train", "run.yaml", *overrides, f"snapshots.url={name}"]) == 0
        yield made


@pytest.mark.parametrize("name", ["dlrm", "deepfm", "factors"])
@pytest.mark.parametrize("user", [4, 99])
def test_scores_and_order_equal_predict(
    name: str, user: int, ask: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask("recommend", name, "--user", f"user {user}", "-k", "20")
    asked = [features_of(user, item) for item in range(NUM_ITEMS)]
    if user == 99:  # its own columns are unknown, and stay empty
        asked = [{**row, "group": "-", "age": "-"} for row in asked]
        assert found["without_row"] == ["user_id 'user 99'"]
    # The matrix factorization reads only users and items.
    empty = ["group", "age"] if user == 99 and name != "factors" else None
    assert found.get("left_empty") == empty
    write_rows(folder / "asked.csv", asked)
    assert main(["predict", name, "asked.csv", "-o", "predicted.csv"]) == 0
    lines = [each.split(",") for each in Path("predicted.csv").read_text().splitlines()]
    predicted = {line[1]: float(line[-1]) for line in lines[1:]}
    best = sorted(predicted, key=lambda item: -predicted[item])
    assert [each["item"] for each in found["items"]] == best
    scores = [each["score"] for each in found["items"]]
    assert scores == pytest.approx([predicted[item] for item in best], rel=1e-5)


def test_given_features_count_as_in_a_file(
    ask: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"brand": "-", "price": 700, "tags": "t9|-", "group": "g1", "age": 50}
    options = [f"--with={name}={str(each).replace('|', ',')}" for name, each in given.items()]
    found = ask("recommend", "dlrm", "--user", "user 4", "-k", "20", *options)["items"]
    write_rows(folder / "asked.csv", [{**features_of(4, n), **given} for n in range(NUM_ITEMS)])
    assert main(["predict", "dlrm", "asked.csv", "-o", "predicted.csv"]) == 0
    lines = [each.split(",") for each in Path("predicted.csv").read_text().splitlines()]
    predicted = {line[1]: float(line[-1]) for line in lines[1:]}
    assert {each["item"]: each["score"] for each in found} == pytest.approx(predicted, rel=1e-5)


def test_items_have_the_features_of_their_last_row_in_the_file(ask: Any, folder: Path) -> None:
    log = (folder / "log.csv").read_text().splitlines()
    row = {**features_of(3, 2), "price": 12345, "at": 999, "clicked": 1, "rating": 5}
    (folder / "changed.csv").write_text("\n".join([*log, ",".join(map(str, row.values())), ""]))
    # The row is for training, not for the test.
    asked = ["recommend", "dlrm", "data.path=changed.csv", "data.split={time_from: 1000}"]
    found = ask(*asked, "data.time=at", "--user", "user 4", "-k", "20")["items"]
    given = ask("recommend", "dlrm", "--user", "user 4", "-k", "20", "--with", "price=12345")[
        "items"
    ]
    (score,) = (each["score"] for each in found if each["item"] == "SKU_2")
    (want,) = (each["score"] for each in given if each["item"] == "SKU_2")
    assert score == pytest.approx(want, rel=1e-5)


def test_features_of_a_tower_are_from_the_training_rows(ask: Any) -> None:
    plain = ask("recommend", "towers", "--user", "user 5", "-k", "20", "--index", "exact")
    assert "left_empty" not in plain
    given = ask(
        "recommend",
        "towers",
        "--user",
        "user 5",
        "-k",
        "20",
        "--index",
        "exact",
        "--with",
        "group=g1",
    )
    assert plain["items"] == given["items"]
    other = ask("recommend", "towers", "--user", "user 5", "-k", "20", "--with", "group=g2")
    assert other["items"] != plain["items"]
    unknown = ask("recommend", "towers", "--user", "somebody", "-k", "20")
    assert unknown["left_empty"] == ["group"]
    assert unknown["without_row"] == ["user_id 'somebody'"]
    assert len(unknown["items"]) == NUM_ITEMS
    # Scores are those of the model for test rows of this user, which have all features.
    scores = {hash_strings([each["item"]])[0]: each["score"] for each in plain["items"]}
    compared = 0
    newest = latest_snapshot("towers")
    assert newest is not None
    with open_run(newest, (), make_plugin_manager()) as (_, model):
        for batch in model.source.data.test_batches():
            queries, items = model.predict(batch)
            for place in np.flatnonzero(batch.ids["user_id"].ids == hash_strings(["user 5"])):
                score = scores[batch.ids["item_id"].ids[place]]
                assert queries[place] @ items[place] == pytest.approx(score, rel=1e-4, abs=1e-5)
                compared += 1
    assert compared


def test_a_sequence_of_a_user_is_from_the_training_rows(
    ask: Any, rows: list[dict[str, Any]]
) -> None:
    # The file is not in the order of times; the last row of each user is the test.
    visits = sorted((row["at"], row["item_id"]) for row in rows if row["user_id"] == "user 6")
    history = [item for _, item in visits[:-1]]
    for count in (21, 20):  # the model reads at most 20 items and the item after them
        given = ",".join(history[-count:])
        plain = ask("recommend", "sequence", "--user", "user 6", "-k", "20", "--index", "exact")
        found = ask(
            "recommend", "sequence", f"--with=history={given}", "-k", "20", "--index", "exact"
        )
        if count == 21:
            assert plain["items"] == found["items"]
        else:
            assert plain["items"] != found["items"]
    assert "give --with history=ITEM,ITEM, oldest first, or --user" in ask("recommend", "sequence")


def test_a_user_without_a_sequence_gets_the_most_popular_items(
    ask: Any, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask("recommend", "sequence", "--user", "somebody", "-k", "20")
    assert found["by_popularity"]
    last: dict[str, int] = {}
    for row in rows:
        last[row["user_id"]] = max(row["at"], last.get(row["user_id"], 0))
    trained = [row["item_id"] for row in rows if row["at"] != last[row["user_id"]]]
    assert {each["item"]: each["score"] for each in found["items"]} == {
        item: trained.count(item) for item in set(trained)
    }
    scores = [each["score"] for each in found["items"]]
    assert scores == sorted(scores, reverse=True)
    assert main(["recommend", "sequence", "--user", "somebody"]) == 0
    shown = capsys.readouterr()
    assert (
        "user 'somebody' has no training row, so the items with the most training rows"
        in " ".join(shown.err.split())
    )
    assert "training rows" in shown.out


def test_items_whose_features_are_unknown_are_counted(ask: Any, folder: Path) -> None:
    log = (folder / "log.csv").read_text().splitlines()
    some = [line for line in log if "SKU_3," not in line]
    (folder / "some.csv").write_text("\n".join([*some, ""]))
    for name in ("dlrm", "towers"):
        found = ask("recommend", name, "data.path=some.csv", "--user", "user 4", "-k", "20")
        assert found["items_left_out"] == 1
        assert len(found["items"]) == NUM_ITEMS - 1


def test_columns_of_other_languages_need_two_options_in_one_message(ask: Any, folder: Path) -> None:
    header, *lines = (folder / "log.csv").read_text().splitlines()
    german = header.replace("user_id", "Kunde").replace("item_id", "Artikel")
    (folder / "german.csv").write_text("\n".join([german, *lines, ""]))
    keys = [
        "data.path=german.csv",
        "data.required=[]",
        "data.types={}",
        "data.categorical=[Kunde, Artikel, tags]",
    ]
    assert main(["train", "run.yaml", *MODELS["dlrm"], *keys, "snapshots.url=german"]) == 0
    # With two features, the other one is known, but not which of them it is.
    refused = ask("recommend", "german", "--user", "user 4")
    assert "give --item FEATURE --user-feature FEATURE, one of Kunde, Artikel, tags" in refused
    found = ask("recommend", "german", "--user", "user 4", "--item", "Artikel")
    assert found == ask("recommend", "german", "--user", "user 4", "--user-feature", "Kunde")
    assert len(found["items"]) == 10
    assert "--user-feature: found Kund, expected one of Kunde, Artikel" in ask(
        "recommend", "german", "--user-feature", "Kund"
    )
