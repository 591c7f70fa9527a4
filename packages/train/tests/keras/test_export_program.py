"""``sparring export-program`` of a click model and of ratings that Keras trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)
sparring_packed: Any = pytest.importorskip(
    "sparring_packed", reason="sparring-packed is not installed"
)

from sparring import hash_strings
from sparring_cli.application import main
from sparring_tf import load_program

CONFIG = """\
framework: tensorflow
seed: 1
data:
  kind: synthetic_criteo
  samples: 2_000
  batch_size: 256
model:
  kind: dlrm
  embedding_dim: 4
  bottom_mlp: [8]
  top_mlp: [8]
storage:
  backend: memory
training:
  epochs: 1
snapshots:
  url: {folder}/runs
"""


def test_a_program_returns_the_probabilities_of_the_model(tmp_path: Path) -> None:
    config, served, out = tmp_path / "clicks.yaml", str(tmp_path / "served"), tmp_path / "bundle"
    config.write_text(CONFIG.format(folder=tmp_path))
    assert main(["train", str(config)]) == 0
    assert main(["publish", str(tmp_path / "runs"), "--output", served]) == 0
    command = ["export-program", str(config), "--output", str(out), "--served", served]
    assert main(command) == 0
    random = np.random.default_rng(0)
    with load_program(out, served) as program:
        for size in (1, 50):
            dense, ids = random.random((size, 13), np.float32), random.integers(0, 9, (size, 26))
            found = program(tf.constant(dense), tf.constant(ids)).numpy()
            assert found.shape == (size,)
            assert ((found > 0) & (found < 1)).all()
        # Trained ids have rows, and other ids have initial values.
        assert len(np.unique(found)) > 1


TABLE = """\
framework: tensorflow
threads: 1
data: {kind: table, path: clicks.csv, label: clicked, categorical: [user, item], numeric: [price],
       batch_size: 32}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [4], top_mlp: [4]}
storage: {backend: memory}
snapshots: {url: runs}
"""


def test_a_program_of_a_table_accepts_numbers_and_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", reason="reads CSV")
    monkeypatch.chdir(tmp_path)
    rows = ["ann,shoe,20,1", "bob,hat,5,0", "ann,hat,5,0"]
    Path("clicks.csv").write_text("\n".join(["user,item,price,clicked", *rows * 64]) + "\n")
    Path("run.yaml").write_text(TABLE)
    assert main(["train", "run.yaml"]) == 0
    assert main(["publish", "runs", "--output", "served"]) == 0
    command = ["export-program", "run.yaml", "--output", "bundle", "--served", "served"]
    assert main([*command, "--follow"]) == 0
    names = [hash_strings(each) for each in (["ann", "bob", "ann"], ["shoe", "hat", "hat"])]
    numbers = np.array([[20], [5], [5]], np.float32)
    with load_program("bundle", "served") as program:

        def check_predictions() -> list[float]:
            assert main(["predict", "runs", "clicks.csv", "--output", "predicted.csv"]) == 0
            # The ids of a row come first.
            expected = np.loadtxt(
                "predicted.csv", delimiter=",", usecols=-1, skiprows=1, max_rows=3
            )
            found = program(tf.constant(numbers), tf.constant(np.stack(names, axis=1))).numpy()
            assert found == pytest.approx(expected, abs=1e-6)
            return list(expected)

        before = check_predictions()
        assert main(["train", "run.yaml", "--resume", "training.epochs=3"]) == 0
        assert main(["publish", "runs", "--output", "served"]) == 0
        assert program.refresh()
        assert check_predictions() != before
