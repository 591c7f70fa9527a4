"""`sparring train` with tables on a device has the bits of the CPU, also with tiers and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed; see nox -s tests")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from sparring import make_plugin_manager, scan_rows
from sparring.snapshot.retention import latest_snapshot
from sparring_testing.fixtures.runs import write_ratings
from sparring_train.config.run_type import run_type
from sparring_train.pytorch.trainer import train
from sparring_train.run.result import SilentProgress, TrainResult

CPU: dict[str, Any] = {"backend": "hkv"}
FILTER = {"kind": "frequency", "k": 2}


def hkv(place: Any, **options: Any) -> dict[str, Any]:
    """A table on the device."""
    return {"backend": "hkv", "options": {"device": place.name, **options}}


def assert_metrics_agree(place: Any, ours: dict[str, float], theirs: dict[str, float]) -> None:
    assert ours == (theirs if place.name == "emulated" else pytest.approx(theirs, rel=1e-3))


class Interrupting(SilentProgress):
    """Ends a run by an error after a step."""

    def __init__(self, at: int = -1) -> None:
        self.at = at

    def on_step(self, step: int, loss: float, samples: int) -> None:
        if step == self.at:
            raise KeyboardInterrupt


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """300 ratings of 60 users and 90 items."""
    random = np.random.default_rng(5)
    users, items = random.integers(0, 60, 300), random.integers(0, 90, 300)
    ratings = (users + items) % 9 / 2 + 1
    return write_ratings(tmp_path / "ratings.csv", users * 10**12 - 7, items * 10**9, ratings)


def config(path: Path, storage: dict[str, Any], optimizer: str, **more: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "threads": 1,
        "data": {
            "kind": "table",
            "path": str(path),
            "label": "rating",
            "categorical": ["user", "item"],
            "required": ["user", "item"],
            "split": {"exact_fraction": 0.1},
            "batch_size": 64,
        },
        "model": {"kind": "matrix_factorization", "dim": 4, "embedding_l2": 0.05},
        "storage": storage,
        "optimizer": {"sparse": {"name": optimizer, "lr": 0.05}},
        "training": {"epochs": 3, "micro_batches": 2},
    } | more


def run(chosen: dict[str, Any], interrupt_at: int = -1) -> TrainResult | None:
    manager = make_plugin_manager()
    try:
        return train(run_type().model_validate(chosen), manager, Interrupting(interrupt_at))
    except KeyboardInterrupt:
        return None


def saved(folder: Path) -> dict[str, dict[int, np.ndarray[Any, Any]]]:
    """Rows of the newest snapshot, by table and key."""
    snapshot = latest_snapshot(str(folder))
    assert snapshot is not None
    return {
        name: {
            int(key): row.copy()
            for chunk in scan_rows(snapshot, name)
            for key, row in zip(chunk.keys, chunk.rows, strict=True)
        }
        for name in snapshot.tables
    }


@pytest.mark.parametrize(
    ("optimizer", "admission"),
    [
        ("rowwise_adagrad", None),
        ("torch.optim:Adam", FILTER),
        pytest.param("rowwise_adagrad", FILTER, marks=pytest.mark.long),
        pytest.param("torch.optim:Adam", None, marks=pytest.mark.long),
    ],
)
def test_a_resumed_run_ends_with_the_bits_of_the_cpu(
    ratings: Path,
    tmp_path: Path,
    optimizer: str,
    admission: dict[str, Any] | None,
    device_place: Any,
) -> None:
    results, rows = [], []
    for name, storage in (("cpu", CPU), ("device", hkv(device_place))):
        more: dict[str, Any] = {
            "tables": {"admission": admission},
            "snapshots": {
                "url": str(tmp_path / name), "every_steps": 2, "full_every": 3, "resume": True
            },
        }  # fmt: skip
        chosen = config(ratings, storage, optimizer, **more)
        if name == "device":
            # A save of one device is continued by the other.
            assert run(chosen, 3) is None
            assert run({**chosen, "storage": CPU}, 6) is None
            assert run(chosen, 9) is None
        result = run(chosen)
        assert result is not None
        results.append(result)
        rows.append(saved(tmp_path / name))
    expected, ours = results
    assert_metrics_agree(device_place, ours.metrics, expected.metrics)
    assert (ours.rows, ours.steps) == (expected.rows, expected.steps)
    assert ours.not_admitted == expected.not_admitted
    tolerance = 0.0 if device_place.name == "emulated" else 1e-3
    for name, of_cpu in rows[0].items():
        assert rows[1][name].keys() == of_cpu.keys()
        for key, row in of_cpu.items():
            np.testing.assert_allclose(rows[1][name][key], row, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("optimizer", "write", "below"),
    [
        ("rowwise_adagrad", "back", "hkv, rocksdb"),
        ("torch.optim:Adam", "through", "hkv"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                ("rowwise_adagrad", "back", "hkv"),
                ("rowwise_adagrad", "through", "hkv"),
                ("rowwise_adagrad", "through", "hkv, rocksdb"),
                ("torch.optim:Adam", "back", "hkv"),
                ("torch.optim:Adam", "back", "hkv, rocksdb"),
                ("torch.optim:Adam", "through", "hkv, rocksdb"),
            )
        ),
    ],
)
def test_rows_are_evicted_from_a_device_and_promoted_again(
    ratings: Path, tmp_path: Path, optimizer: str, write: str, below: str, device_place: Any
) -> None:
    tiers: list[dict[str, Any]] = [hkv(device_place, capacity=40, policy="lru"), CPU]
    if below != "hkv":
        pytest.importorskip("sparring_rocksdb.plugin", reason="sparring-rocksdb is not installed")
        tiers[1] = {"backend": "hkv", "options": {"capacity": 60, "policy": "lru"}}
        path = str(tmp_path / "{table}")
        tiers.append({"backend": "rocksdb", "options": {"path": path}})
    stacked = {"backend": "tiered", "options": {"tiers": tiers, "write": write}}
    ours, plain = (run(config(ratings, storage, optimizer)) for storage in (stacked, CPU))
    assert ours is not None
    assert plain is not None
    assert_metrics_agree(device_place, ours.metrics, plain.metrics)
    assert ours.rows == plain.rows
    first, *_, last = ours.tiers["item"]
    assert first["evictions"] > 0
    assert last["hits"] > 0


def test_a_model_follows_its_tables(ratings: Path, device_place: Any) -> None:
    chosen = config(ratings, hkv(device_place), "adagrad", training={"steps": 2, "pipeline": True})
    result = run(chosen)
    assert result is not None
    assert result.steps == 2
