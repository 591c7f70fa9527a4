"""Recommendations by actors of Ray have the bytes of those by one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

ray = pytest.importorskip("ray", reason="ray is not installed; see nox -s engines")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')
pytest.importorskip("sparring_packed", reason="pip install sparring-packed")

import sparring_ray
from sparring import list_snapshots, make_plugin_manager, open_snapshot
from sparring_train import (
    RecommendationOptions,
    compute_parts,
    find_trainer,
    open_recommendations,
    parse_config,
)
from sparring_train.run.result import SilentProgress

CONFIG = """
seed: 1
data: {kind: table, path: log.parquet, batch_size: 64, categorical: [user, item],
       required: [user, item]}
model: {kind: two_towers, embedding_dim: 8, user: [user], item: [item]}
snapshots: {url: saved}
"""
NUM_PROCESSORS = 4
OPTIONS = RecommendationOptions(k=5, exclude_trained=True, part_rows=7)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("run")
    random = np.random.default_rng(5)
    users, items = random.integers(0, (50, 40), (600, 2)).T
    parquet.write_table(pyarrow.table({"user": users, "item": items}), folder / "log.parquet")
    config = parse_config(CONFIG, folder=str(folder))
    manager = make_plugin_manager()
    find_trainer("torch", manager).train(config, manager, SilentProgress())
    ray.init(num_cpus=NUM_PROCESSORS, logging_level="warning")
    yield max(list_snapshots(str(folder / "saved")))
    ray.shutdown()


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def test_workers_on_some_or_all_processors_write_the_bytes_of_one_process(
    snapshot: str, tmp_path: Path
) -> None:
    with open_recommendations(open_snapshot(snapshot), str(tmp_path / "plain"), OPTIONS) as job:
        compute_parts(job, job.output)
    expected = contents(tmp_path / "plain")
    assert sum(name.startswith("part-") for name in expected) == 8
    for num_workers in (1, 2, 3, NUM_PROCESSORS):
        output = tmp_path / f"{num_workers} workers"
        result = sparring_ray.recommend(snapshot, str(output), OPTIONS, num_workers)
        assert (result.num_computed, result.num_kept, result.is_complete) == (8, 0, True)
        assert contents(output) == expected
    next(output.glob("part-000003-*")).unlink()
    result = sparring_ray.recommend(snapshot, str(output), OPTIONS, 2)
    assert (result.num_computed, result.num_kept, result.is_complete) == (1, 7, True)
    assert contents(output) == expected
