"""Training on Ray Datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="ray is not installed; see nox -s engines")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from ray import data as ray_data

import sparring_ray
from sparring import hash_strings, open_snapshot, scan_rows

CONFIG = """
data: {kind: ray, test: held_out, categorical: [user, item], numeric: [price], label: clicked,
       batch_size: 10, bad_rows: skip}
model: {kind: deepfm, embedding_dim: 4}
snapshots: {url: saved}
"""
NUM_ROWS = 101


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, logging_level="warning")
    yield
    ray.shutdown()


def rows() -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    return [
        {
            "user": f"user {number % 7}",
            "item": number % 20 - 10,
            "price": float(random.normal()),
            "clicked": 7 if number == 4 else number % 2,
        }
        for number in range(NUM_ROWS)
    ]


@pytest.mark.parametrize(("num_workers", "num_steps"), [(1, 11), (2, 10)])
def test_workers_train_on_equal_shards(num_workers: int, num_steps: int, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    datasets = {"train": ray_data.from_items(rows()), "held_out": ray_data.from_items(rows()[50:])}
    result = sparring_ray.train(path, num_workers, datasets=datasets)
    trained = result.return_value
    assert trained.steps == num_steps
    assert trained.skipped["rows_skipped"] == 1
    assert trained.metrics["auc"] > 0.5
    assert trained.rows == {"user": 7, "item": 20}
    snapshot = open_snapshot(result.metrics["snapshot"])
    keys = {int(key) for chunk in scan_rows(snapshot, "user") for key in chunk.keys}
    assert keys == {int(each) for each in hash_strings([f"user {n}" for n in range(7)])}
