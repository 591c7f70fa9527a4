"""`sparring publish` adds the parameters and the preprocessing of a run's model to its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparring_packed", reason="pip install sparring-packed")
pytest.importorskip("sparring_serve", reason="pip install sparring-serve")

from sparring import State, latest_snapshot
from sparring_cli.application import main
from sparring_packed import decode_parameters, read_manifest
from sparring_train.config.reading.loader import parse_config
from sparring_train.run import served_model
from sparring_train.run.served_model import keras_parameters, torch_parameters

CONFIG = """
threads: 1
data: {kind: table, path: clicks.csv, label: clicked, categorical: [user, item, tags], lists: [tags],
       separator: "|", numeric: [price], minimum: {price: 0}, log1p: [price], missing_ids: {user: -7},
       share_tables: {tags: item}, batch_size: 8}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [4], top_mlp: [8]}
storage: {backend: memory}
training: {steps: 2}
snapshots: {url: clicks}
"""


def test_published_versions_contain_the_parameters_of_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="trains with PyTorch")
    from sparring_torch import restore_state

    monkeypatch.chdir(tmp_path)
    lines = [f"ann-{n % 3},{n},{n % 5},{n / 2},{n % 2}" for n in range(40)]
    Path("clicks.csv").write_text("\n".join(["user,item,tags,price,clicked", *lines]) + "\n")
    Path("clicks.yaml").write_text(CONFIG)
    assert main(["train", "clicks.yaml"]) == 0
    assert main(["publish", "clicks", "-o", "served"]) == 0

    trained = latest_snapshot("clicks")
    assert trained is not None
    served = Path("served", trained.name)
    manifest = read_manifest(served)
    assert [each.kind for each in manifest.model] == ["parameters", "preprocessing"]
    arrays, metadata = decode_parameters((served / "parameters.safetensors").read_bytes())
    assert metadata["framework"] == "torch"
    assert set(json.loads(metadata["names"])) == set(arrays)

    class Recorder:
        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

        def state_dict(self) -> dict[str, Any]:
            return self.state

    saved = trained.state("torch")
    recorder = Recorder()
    restore_state(State(saved.values, saved.arrays), model=recorder)
    expected = {name: each for name, each in recorder.state.items() if torch.is_tensor(each)}
    assert list(expected) == json.loads(metadata["names"])
    assert expected
    for name, value in expected.items():
        assert arrays[name].tobytes() == value.numpy().tobytes(), name

    described = json.loads((served / "preprocessing.json").read_text())
    user, item, tags = described["categorical"]
    assert user == {
        "name": "user", "table": "user", "type": "string", "is_list": False,
        "may_be_missing": False, "missing_id": -7,
    }  # fmt: skip
    assert (item["type"], item["missing_id"]) == ("integer", None)
    assert (tags["table"], tags["is_list"], tags["may_be_missing"]) == ("item", True, True)
    assert described["numeric"] == [{"name": "price", "minimum": 0.0, "log1p": True}]
    assert (described["format"], described["strings"]) == (1, "xxh3-64")
    assert described["vectors"] == []


def test_parameters_keep_the_order_and_types_of_the_framework() -> None:
    halves = np.array([1, 2], np.int16)
    values = {"model": {"map": [["b", {"tensor": "model.b.0", "dtype": "bfloat16"}], ["n", 3]]}}
    [(name, array)] = torch_parameters(State(values, {"model.b.0": halves})).items()
    assert (name, array.dtype.name, array.tobytes()) == ("b", "bfloat16", halves.tobytes())

    paths = ["dense/kernel", "dense/bias", "dense/bias"]
    variables = {f"model.{number}": np.full(2, number, np.float32) for number in range(3)}
    found = keras_parameters(State({"model": paths}, {**variables, "dense.0": halves}))
    assert list(found) == ["dense/kernel", "dense/bias", "dense/bias#2"]
    assert [each[0] for each in found.values()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("model", "vectors"),
    [
        ("kind: two_towers", ["item", "user"]),
        ("kind: two_towers, layers: [4]", []),
        ("kind: two_towers, normalize: true", []),
        ("kind: two_towers, user: [user, tags]", []),
        ("kind: matrix_factorization", []),
        ("kind: dlrm", []),
    ],
)
def test_a_version_names_the_tables_whose_rows_the_model_compares(
    model: str, vectors: list[str]
) -> None:
    columns = "categorical: [user, item, tags], required: [user, item]"
    data = f"kind: table, path: log.csv, {columns}, label: clicked"
    positive = ", positive: 1" if "two_towers" in model else ""
    config = parse_config(f"data: {{{data}}}\nmodel: {{{model}{positive}}}\n")
    assert served_model._compared_tables(config) == vectors
