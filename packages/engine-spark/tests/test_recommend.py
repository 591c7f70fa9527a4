"""`sparring_spark.recommend` writes the parts of `sparring recommend --all-users`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

pytest.importorskip("sparring_torch", reason='trains a model: pip install "sparring[torch]"')

import sparring_spark
from sparring import latest_snapshot
from sparring_cli.application import main
from sparring_train import RecommendationOptions

RUN = """
seed: 1
threads: 1
data: {kind: table, path: log.parquet, batch_size: 64, categorical: [user, item], required: [user, item],
       dictionary: true}
model: {kind: two_towers, embedding_dim: 8, user: [user], item: [item]}
storage: {backend: memory}
optimizer: {sparse: {name: adagrad, lr: 0.3}, dense: {name: adam, lr: 0.01}}
training: {epochs: 1}
snapshots: {url: saved}
"""


def test_parts_equal_those_of_the_command(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    users, items = np.random.default_rng(5).integers(0, (23, 40), (600, 2)).T
    log = pyarrow.table({"user": [f"user {each}" for each in users], "item": items * 3})
    parquet.write_table(log, "log.parquet")
    (tmp_path / "run.yaml").write_text(RUN)
    assert main(["train", "run.yaml"]) == 0
    command = ["recommend", str(tmp_path / "saved"), "--all-users", "-k", "6", "--part-users", "5"]
    assert main([*command, "-o", str(tmp_path / "expected")]) == 0
    snapshot = latest_snapshot(str(tmp_path / "saved"))
    assert snapshot is not None
    options = RecommendationOptions(k=6, part_rows=5)
    best = sparring_spark.recommend(spark, snapshot.url, str(tmp_path / "found"), options)
    assert {row["user"] for row in best.collect()} == set(log["user"].to_pylist())
    files = {each.name: each.read_bytes() for each in (tmp_path / "found").iterdir()}
    assert len(files) >= 5
    assert files == {each.name: each.read_bytes() for each in (tmp_path / "expected").iterdir()}
