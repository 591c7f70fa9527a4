"""`sparring evaluate`, `predict`, `recommend`, `neighbors`: queries to a trained model.

The file is long because all commands query the same trained models, which take seconds to train.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')
pytest.importorskip("sparring_packed", reason="pip install sparring-packed")

from sparring import Snapshot, hash_strings, latest_snapshot, make_plugin_manager
from sparring_cli.application import main
from sparring_train.recommend import item_index
from sparring_train.run.saved_run import open_run, read_run_config

CLICKS = """
seed: 1
threads: 1
data: {kind: table, path: clicks.csv, label: clicked, categorical: [user, item], numeric: [price],
       dictionary: true, batch_size: 64}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [4], top_mlp: [8]}
storage: {backend: memory}
optimizer: {sparse: {name: adagrad, lr: 0.3}, dense: {name: adam, lr: 0.01}}
training: {epochs: 6}
snapshots: {url: clicks}
"""
RATINGS = """
seed: 1
threads: 1
data: {kind: table, path: ratings.csv, batch_size: 64, label: rating, categorical: [user, item],
  required: [user, item], split: {exact_fraction: 0.1}}
model: {kind: matrix_factorization, dim: 4, embedding_l2: 0.01}
storage: {backend: memory}
optimizer: {sparse: {name: adagrad, lr: 0.3}}
training: {epochs: 12}
snapshots: {url: ratings}
"""
TOWERS = """
seed: 1
threads: 1
data: {kind: table, path: towers.csv, label: clicked, categorical: [user, item, brand, colours],
       lists: [colours], separator: "|", dictionary: true, batch_size: 64}
model: {kind: two_towers, embedding_dim: 8, user: [user], item: [item, brand, colours], layers: [16],
        positive: 1}
storage: {backend: memory}
optimizer: {sparse: {name: adagrad, lr: 0.3}, dense: {name: adam, lr: 0.01}}
training: {epochs: 6}
snapshots: {url: towers}
"""


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Clicks of users on items of their own kind, even or odd, and such ratings; trained."""
    made = tmp_path_factory.mktemp("asked")
    random = np.random.default_rng(3)
    users, items = random.integers(0, 20, 1500), random.integers(0, 12, 1500)
    fits = (users + items) % 2 == 0
    lines = [
        f"user-{user},SKU_{item},{price:.2f},{int(fit)}"
        for user, item, price, fit in zip(users, items, random.random(1500), fits, strict=True)
    ]
    (made / "clicks.csv").write_text("\n".join(["user,item,price,clicked", *lines]) + "\n")
    pairs = [(user, item) for user in range(20) for item in range(12) if (7 * user + item) % 4]
    rows = [f"{user},{item},{5 if (user + item) % 2 == 0 else 1},0" for user, item in pairs]
    (made / "ratings.csv").write_text("\n".join(["user,item,rating,timestamp", *rows]) + "\n")
    lines = [
        f"user-{user},SKU_{item},{'even' if item % 2 == 0 else 'odd'},c{item % 3}|c{item % 5},{int(fit)}"
        for user, item, fit in zip(users, items, fits, strict=True)
    ]
    lines += ["user-1,,even,,1", "user-1,,odd,c1,1"]  # of no item
    (made / "towers.csv").write_text("\n".join(["user,item,brand,colours,clicked", *lines]) + "\n")
    (made / "towers.yaml").write_text(TOWERS)
    (made / "clicks.yaml").write_text(CLICKS)
    (made / "ratings.yaml").write_text(RATINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        assert main(["train", "clicks.yaml"]) == 0
        assert main(["train", "ratings.yaml"]) == 0
        assert main(["train", "towers.yaml"]) == 0
        yield made


@pytest.mark.parametrize("name", ["clicks", "ratings"])
def test_a_saved_model_has_the_metrics_that_its_run_reported(
    ask: Any, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask("evaluate", name, "--json")
    capsys.readouterr()
    assert main(["train", f"{name}.yaml", f"snapshots.url={name}-again", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["metrics"] == told["metrics"]
    assert found["step"] == told["steps"]
    assert found["snapshot"].startswith(str(folder)) or found["snapshot"].startswith(name)


def test_a_saved_model_needs_only_storage_in_memory(ask: Any, folder: Path) -> None:
    newest = latest_snapshot(folder / "ratings")
    assert newest is not None
    assert read_run_config(newest, (), make_plugin_manager()).storage.backend == "memory"


def test_moved_data_are_named(ask: Any, folder: Path) -> None:
    (folder / "ratings.csv").rename(folder / "moved.csv")
    try:
        assert "found no file" in ask("evaluate", "ratings", "--json")
        assert ask("evaluate", "ratings", "data.path=moved.csv", "--json")["metrics"]["rmse"] < 2
    finally:
        (folder / "moved.csv").rename(folder / "ratings.csv")


def test_predictions_equal_the_model_in_the_order_of_the_file(folder: Path) -> None:
    assert main(["predict", "clicks", "clicks.csv", "-o", "out.csv"]) == 0
    assert main(["predict", "clicks", "clicks.csv", "-o", "out.parquet"]) == 0
    found = csv.read_csv(folder / "out.csv")["prediction"].to_numpy()
    np.testing.assert_array_equal(
        found.astype(np.float32), parquet.read_table("out.parquet")["prediction"].to_numpy()
    )
    clicked = csv.read_csv(folder / "clicks.csv")["clicked"].to_numpy()
    assert len(found) == len(clicked)
    assert found[clicked == 1].mean() > found[clicked == 0].mean() + 0.3


def test_predictions_need_no_label(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "new.csv").write_text("item,user,price\nSKU_1,user-1,0.5\nSKU_2,user-1,0.5\n,,\n")
    capsys.readouterr()
    assert main(["predict", "clicks", "new.csv"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(",")[0] for line in lines] == ["user-1,SKU_1", "user-1,SKU_2", ","]
    fits, fits_not, neither = (float(line.rpartition(",")[2]) for line in lines)
    assert header == "user,item,prediction"
    assert fits > neither > fits_not


def test_predict_reports_how_many_rows_have_an_id_without_a_row(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "some.csv").write_text("item,user,price\nSKU_1,ann,0.5\nSKU_1,user-1,0.5\n,bob,\n")
    capsys.readouterr()
    assert main(["predict", "clicks", "some.csv"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "user: 2 of 3 rows contain an id without a row, which reads as its initial value"
    ]
    (folder / "empty.csv").write_text("item,user,price\n")
    assert main(["predict", "clicks", "empty.csv"]) == 0
    assert capsys.readouterr().out == "user,item,prediction\n"


FEATURES = """
seed: 1
threads: 1
data: {kind: table, path: features.csv, label: clicked, batch_size: 64, numeric: [price, age],
       categorical: [user_id, item_id, brand, tags, hour], lists: [tags], separator: "|",
       types: {user_id: string}, dictionary: true}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [4], top_mlp: [8]}
storage: {backend: memory}
optimizer: {sparse: {name: adagrad, lr: 0.3}, dense: {name: adam, lr: 0.01}}
training: {epochs: 2}
snapshots: {url: features}
"""


@pytest.fixture(scope="module")
def features(folder: Path) -> Path:
    """Clicks with columns of the item, of the user, and of neither."""
    random = np.random.default_rng(5)
    lines = [
        f"{user},{item},b{item % 3},t{item % 2}|t{item % 5},{hour},{item / 4},{20 + user % 7},"
        f"{int((user + item) % 2 == 0)}"
        for user, item, hour in random.integers(0, (20, 12, 24), (1500, 3))
    ]
    header = "user_id,item_id,brand,tags,hour,price,age,clicked"
    (folder / "features.csv").write_text("\n".join([header, *lines]) + "\n")
    (folder / "features.yaml").write_text(FEATURES)
    assert main(["train", "features.yaml"]) == 0
    return folder


def test_a_click_model_scores_items_with_the_features_of_the_training_rows(
    ask: Any, features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["recommend", "features", "--user", "4", "-k", "20"]
    found = ask(*asked, "--json")
    assert found["left_empty"] == ["hour"]
    assert "without_row" not in found
    rows = [f"4,{item},b{item % 3},t{item % 2}|t{item % 5},,{item / 4},24" for item in range(12)]
    header = "user_id,item_id,brand,tags,hour,price,age"
    (features / "asked.csv").write_text("\n".join([header, *rows]) + "\n")
    capsys.readouterr()
    assert main(["predict", "features", "asked.csv", "--output", "asked-out.csv"]) == 0
    predicted = [line.split(",")[-1] for line in Path("asked-out.csv").read_text().splitlines()[1:]]
    best = sorted(range(12), key=lambda item: -float(predicted[item]))
    assert [each["item"] for each in found["items"]] == best
    scores = [each["score"] for each in found["items"]]
    assert scores == pytest.approx([float(predicted[item]) for item in best], rel=1e-5)
    assert main(asked) == 0
    assert "left empty: hour, because the training data do not determine" in capsys.readouterr().err
    hour = ask(*asked, "--with", "hour=7", "--json")
    assert "left_empty" not in hour
    assert hour["items"] != found["items"]


def test_a_user_without_a_row_is_answered_from_the_initial_row(ask: Any, features: Path) -> None:
    assert features.is_dir()
    found = ask("recommend", "features", "--user", "nobody@example.org", "-k", "3", "--json")
    assert len(found["items"]) == 3
    assert found["without_row"] == ["user_id 'nobody@example.org'"]
    assert found["left_empty"] == ["hour", "age"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["clicks", "none.csv"], "found no file"),
        (
            ["clicks", "clicks.csv", "-o", "out.txt"],
            "expected a name that ends in .csv or .parquet",
        ),
        (["clicks", "ratings.csv"], "column 'price' is missing"),
        (["nowhere", "clicks.csv"], "nowhere"),
    ],
)
def test_rows_that_cannot_be_predicted_are_rejected_and_nothing_is_written(
    ask: Any, arguments: list[str], reason: str, folder: Path
) -> None:
    before = set(folder.iterdir())
    assert reason in ask("predict", *arguments)
    assert set(folder.iterdir()) == before


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
@pytest.mark.parametrize("items", ["strings", "numbers"])
def test_ids_of_another_file_are_computed_like_those_of_the_run(
    items: str, ask: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Items of the run are `7` and `x7`; all items of the queried file look like numbers.
    lines = [
        f"u{n % 9},{'x' * (n % 2 and items == 'strings')}{n % 12},{n % 3 % 2}" for n in range(600)
    ]
    (folder / "mixed.csv").write_text("\n".join(["user,item,clicked", *lines]) + "\n")
    (folder / "mixed.yaml").write_text(
        CLICKS.replace("clicks.csv", "mixed.csv").replace("numeric: [price],", "")
    )
    assert main(["train", "mixed.yaml", f"snapshots.url=mixed-{items}"]) == 0
    run, digits = f"mixed-{items}", range(0, 12, 2)

    def predicted(name: str) -> list[str]:
        capsys.readouterr()
        assert main(["predict", run, name]) == 0
        return capsys.readouterr().out.splitlines()

    (folder / "digits.csv").write_text("user,item\n" + "".join(f"u1,{n}\n" for n in digits))
    joined = "".join(f"u1,{n}\n" for n in digits) + ("u1,x7\n" if items == "strings" else "u1,7\n")
    (folder / "both.csv").write_text("user,item\n" + joined)
    assert predicted("digits.csv") == predicted("both.csv")[:-1]
    users = ["u1"] * len(digits)
    table = pyarrow.table({"user": users, "item": [str(n) for n in digits]})
    parquet.write_table(table, folder / "text.parquet")
    parquet.write_table(pyarrow.table({"user": users, "item": digits}), folder / "whole.parquet")
    same, other = ("text", "whole") if items == "strings" else ("whole", "text")
    assert predicted(f"{same}.parquet") == predicted("digits.csv")
    refused = ask("predict", run, f"{other}.parquet")
    assert f"column 'item': found {'whole numbers' if items == 'strings' else 'strings'}" in refused
    if items == "numbers":
        (folder / "text.csv").write_text("user,item\nu1,x7\n")
        assert "found 'x7', expected a whole number" in ask("predict", run, "text.csv")


def test_a_file_to_predict_has_histories_as_lists(
    ask: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The known rows are those of the run."""
    lines = [f"u{n % 9},i{n * 7 % 12},{n},{n % 3 % 2}" for n in range(600)]
    (folder / "visits.csv").write_text("\n".join(["user,item,at,clicked", *lines]) + "\n")
    history = "time: at, history: {of: item, by: user, length: 5},"
    (folder / "visits.yaml").write_text(
        CLICKS.replace("clicks.csv", "visits.csv").replace("numeric: [price],", history)
    )
    assert main(["train", "visits.yaml", "snapshots.url=visits"]) == 0
    asked = {"user": ["u1"], "item": ["i4"], "history": [["i2", "i3"]]}
    parquet.write_table(pyarrow.table(asked), folder / "asked.parquet")
    capsys.readouterr()
    assert main(["predict", "visits", "asked.parquet"]) == 0
    header, line = capsys.readouterr().out.split()
    assert header == "user,item,history,prediction"
    ids, _, predicted = line.rpartition(",")
    assert ids == "u1,i4,i2|i3"
    given = ("--with", "history=i2,i3", "-k", "12", "--item", "item", "--json")
    scores = ask("recommend", "visits", "--user", "u1", *given)["items"]
    (score,) = (each["score"] for each in scores if each["item"] == "i4")
    assert float(predicted) == pytest.approx(score, rel=1e-5)
    assert "data.lists contains history" in ask("predict", "visits", "visits.csv")


def test_a_row_is_shown_by_its_string(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask("get", "clicks", "item", "SKU_3", "--json")
    assert (found["found"], found["key"]) == (True, int(hash_strings(["SKU_3"])[0]))
    assert len(found["parts"]["embedding"]) == 4
    assert main(["get", "clicks", "item", "SKU_99"]) == 3
    assert "no row" in capsys.readouterr().out


def test_the_best_items_are_of_the_kind_of_the_user(ask: Any) -> None:
    clicks = ask("recommend", "clicks", "--user", "user-4", "-k", "6", "--item", "item", "--json")
    assert {each["item"] for each in clicks["items"]} == {f"SKU_{item}" for item in range(0, 12, 2)}
    ratings = ask("recommend", "ratings", "--user", "5", "-k", "6", "--json")
    assert {each["item"] for each in ratings["items"]} == set(range(1, 12, 2))
    scores = [each["score"] for each in ratings["items"]]
    assert scores == sorted(scores, reverse=True)


def _newest(folder: str) -> Snapshot:
    newest = latest_snapshot(folder)
    assert newest is not None
    return newest


def test_items_of_several_features_have_the_values_of_the_training_data(ask: Any) -> None:
    asked = ["recommend", "towers", "--user", "user-4", "--index", "exact", "--json"]
    found = ask(*asked, "-k", "6")
    assert {each["item"] for each in found["items"]} == {f"SKU_{item}" for item in range(0, 12, 2)}
    assert found["index"] == "exact"
    assert len(ask(*asked, "-k", "100")["items"]) == 12
    # The score of an item is the score of its examples, which have all its features.
    scores = {each["item"]: each["score"] for each in found["items"]}
    with open_run(_newest("towers"), (), make_plugin_manager()) as (_, model):
        batch = next(iter(model.source.data.test_batches()))
        vectors = model.predict(batch)
        of_user = batch.ids["user"].ids == hash_strings(["user-4"])
        compared = 0
        for place in np.flatnonzero(of_user):
            for name, score in scores.items():
                if batch.ids["item"].ids[place] == hash_strings([name])[0]:
                    assert vectors[0, place] @ vectors[1, place] == pytest.approx(score, rel=1e-5)
                    compared += 1
    assert compared


def test_a_table_with_a_label_requires_a_positive_value(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_dir()
    assert main(["train", "towers.yaml", "model.positive=null"]) == 2
    assert "model.positive: must be set, because the data has labels" in capsys.readouterr().err
    given = ("model.positive=null", "data.label=null", "data.categorical=[user,item,brand,colours]")
    assert main(["config", "check", "towers.yaml", *given]) == 0


def test_new_items_of_several_features(ask: Any) -> None:
    asked = ["recommend", "towers", "--user", "user-4", "-k", "20", "--new", "--json"]
    assert len(ask(*asked)["items"]) < 12


def test_an_index_of_faiss_answers_like_the_exact_one(ask: Any) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed; see nox -s engines")
    for asked in (
        ["recommend", "towers", "--user", "user-4", "-k", "5"],
        ["neighbors", "clicks", "item", "SKU_3", "-k", "4"],
        ["neighbors", "clicks", "item", "SKU_3", "-k", "4", "--metric", "l2"],
    ):
        exact = ask(*asked, "--index", "exact", "--json")
        for index in (["--index", "faiss"], ["--index", "auto"], []):
            found = ask(*asked, *index, "--json")
            assert (found.pop("index"), exact["index"]) == ("faiss", "exact")
            listed = "items" if "items" in found else "neighbors"
            for one, two in zip(found[listed], exact[listed], strict=True):
                assert {**one, "score": 0} == {**two, "score": 0}
                assert one["score"] == pytest.approx(two["score"], rel=1e-4, abs=1e-5)


def test_missing_faiss_is_reported_if_it_is_requested(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_index, "find_spec", lambda name: None if name == "faiss" else name)
    for asked in (
        ["recommend", "towers", "--user", "user-4", "--json"],
        ["neighbors", "clicks", "item", "SKU_3", "--json"],
    ):
        assert "pip install faiss-cpu" in ask(*asked, "--index", "faiss")
        assert ask(*asked)["index"] == "exact"


def test_new_items_are_not_in_the_training_data(ask: Any, folder: Path) -> None:
    rows = (folder / "ratings.csv").read_text().splitlines()[1:]
    rated = {int(row.split(",")[1]) for row in rows if row.startswith("5,")}
    every = ask("recommend", "ratings", "--user", "5", "-k", "12", "--json")["items"]
    new = ask("recommend", "ratings", "--user", "5", "-k", "12", "--new", "--json")["items"]
    left_out = {each["item"] for each in every} - {each["item"] for each in new}
    assert left_out
    assert left_out <= rated


def test_other_known_features_change_the_scores(ask: Any) -> None:
    asked = ["recommend", "clicks", "--user", "user-4", "-k", "2", "--item", "item", "--json"]
    plain = ask(*asked)["items"]
    assert ask(*asked, "--with", "price=0")["items"] == plain
    assert ask(*asked, "--with", "price=1000")["items"] != plain


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["clicks", "--user", "user-4", "--item", "film"], "expected one of user, item"),
        (["typed", "--user", "ann"], "user: found 'ann', but its ids are whole numbers of 64 bits"),
        (
            ["clicks", "--user", "user-4", "--item", "item", "--with", "age=3"],
            "of user, item, price",
        ),
        (
            ["clicks", "--user", "user-4", "--item", "item", "--with", "price=x"],
            "expected a number",
        ),
        (
            ["clicks", "--user", "user-4", "--item", "item", "--index", "faiss"],
            "scores pairs and has",
        ),
        (
            ["towers", "--user", "user-4", "--item", "brand"],
            "two_towers ranks the items of item; remove --item",
        ),
        (
            ["ratings"],
            "found 0 ids of feature 'user'; the model needs one of each, give: --user=…",
        ),
        (["required", "-k", "1"], "give: --user=… --with device=…"),
        (["ratings", "--new"], "--new excludes the items of a user"),
    ],
)
def test_a_query_without_an_answer_is_rejected(
    ask: Any, arguments: list[str], reason: str, features: Path
) -> None:
    if (name := arguments[0]) in ("typed", "required") and not Path(name).exists():
        (features / "typed.csv").write_text("user,item,clicked\n" + "1,2,1\n2,3,0\n" * 20)
        changed = {
            "typed": ["data.path=typed.csv", "data.categorical=[user,item]", "data.numeric=[]"],
            "required": ["data.categorical=[user_id,item_id,device]", "data.path=required.csv"],
        }
        (features / "required.csv").write_text(
            "user_id,item_id,device,price,age,clicked\n" + "1,2,a,1,1,1\n1,2,b,2,2,0\n" * 20
        )
        keys = ["data.lists=[]", "data.types={}", f"snapshots.url={name}"]
        required = ["data.required=[user_id,item_id,device]"] if name == "required" else []
        assert main(["train", "features.yaml", *changed[name], *keys, *required]) == 0
    assert reason in ask("recommend", *arguments, "--json")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_unsigned_ids_keep_their_64_bits(ask: Any, features: Path, ending: str) -> None:
    users = [2**63 + 1, 2**64 - 1, 7]
    rows = {"user": users * 20, "item": [1, 2, 3] * 20, "clicked": [1, 0, 1] * 20}
    table = pyarrow.table({**rows, "user": pyarrow.array(rows["user"], pyarrow.uint64())})
    if ending == "csv":
        csv.write_csv(table, features / "unsigned.csv")
    else:
        parquet.write_table(table, features / "unsigned.parquet")
    keys = ["data.categorical=[user,item]", "data.numeric=[]", "data.lists=[]"]
    run = [
        "train",
        "features.yaml",
        f"data.path=unsigned.{ending}",
        f"snapshots.url=unsigned-{ending}",
    ]
    if ending == "parquet":
        assert "data.types: {column: unsigned} accepts more" in ask(
            *run, *keys, "data.types={}", "--json"
        )
    assert main([*run, *keys, "data.types={user: unsigned}"]) == 0
    for user, key in zip(users, [-(2**63) + 1, -1, 7], strict=True):
        assert ask("get", f"unsigned-{ending}", "user", str(user), "--json")["key"] == key
    found = ask("neighbors", f"unsigned-{ending}", "user", "7", "-k", "2", "--json")
    assert {each["key"] for each in found["neighbors"]} == set(users[:2])
    assert "without_row" not in ask(
        "recommend", f"unsigned-{ending}", "--user", str(users[0]), "--json"
    )


def test_neighbors_are_of_the_same_kind(ask: Any) -> None:
    found = ask("neighbors", "ratings", "item", "3", "-k", "4", "--json")
    assert found["of"] == "3"
    assert all(each["key"] % 2 for each in found["neighbors"])
    named = ask("neighbors", "clicks", "item", "SKU_3", "-k", "4", "--metric", "l2", "--json")
    assert all(each["key"].startswith("SKU_") for each in named["neighbors"])
    assert "has no row" in ask("neighbors", "ratings", "item", "xyz")
    assert "no table 'film'" in ask("neighbors", "ratings", "film", "3")
    assert "metric" in ask("neighbors", "ratings", "item", "3", "--metric", "angle")


OWN_CLASSES = """
import torch
from sparring.contracts import INITIALIZERS

class Sum(torch.nn.Module):
    def __init__(self, embeddings, num_numbers):
        super().__init__()
        self.embeddings = embeddings
        self.layer = torch.nn.LazyLinear(1)
        self.layer(torch.zeros(2, 8))

    def forward(self, numbers, features):
        return self.layer(self.embeddings(features).values())

class Start:
    def initializer(self, table):
        return INITIALIZERS["zeros"]()
"""


@pytest.mark.parametrize(
    ("classes", "command"),
    [
        ({"model.kind": "Sum"}, ["evaluate"]),
        ({"model.kind": "Sum"}, ["predict", "clicks.csv"]),
        ({"tables.initializer.kind": "Start"}, ["evaluate"]),
        ({"tables.overrides.user.initializer.kind": "Start"}, ["recommend", "--user", "user-4"]),
    ],
)
def test_a_class_that_only_a_snapshot_names_is_not_imported(
    ask: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    classes: dict[str, str],
    command: list[str],
) -> None:
    module = "own_" + "_".join([*classes.values(), command[0]])
    (tmp_path / f"{module}.py").write_text(OWN_CLASSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    named = [f"{key}={module}:{name}" for key, name in classes.items()]
    run = [f"snapshots.url={tmp_path / 'run'}", "training.epochs=1"]
    if "model.kind" in classes:
        own = f"model={{kind: {module}:Sum, embedding_dim: 4}}"
        assert main(["train", "clicks.yaml", *run, own]) == 0
    else:
        assert main(["train", "clicks.yaml", *run, *named]) == 0
    del sys.modules[module]
    name, *arguments = command
    using = [name, str(tmp_path / "run"), *arguments]
    said = ask(*using, "plan=auto")
    assert "names classes to import" in said
    assert said.endswith("add them to the command: " + " ".join(named))
    assert module not in sys.modules
    assert main([*using, *named]) == 0
    assert module in sys.modules


def test_a_snapshot_of_a_program_has_no_model_to_query(ask: Any, tmp_path: Path) -> None:
    from sparring_torch import Embedding, Optimizer

    module = Embedding(4, name="item", storage="memory")
    with Optimizer(module, "sgd", lr=0.1).container as container:
        container.save(str(tmp_path / "program"))
    assert "was not saved by `sparring train`" in ask("evaluate", str(tmp_path / "program"))
