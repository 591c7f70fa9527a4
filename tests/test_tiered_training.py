"""Tests that training with a stack of storages gives the same bits as with one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparring_testing.fixtures.runs import RunCommand

pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
pytest.importorskip("sparring_sqlite", reason="the template backend is not installed")

ROOT = Path(__file__).parents[1]

SMALL = {"backend": "hkv", "options": {"capacity": 600}}
SMALLER = {"backend": "hkv", "options": {"capacity": 300}}


Trained = Callable[..., dict[str, Any]]
_PLAIN: dict[str, dict[str, Any]] = {}
"""Optimizer → result of a run without a stack, which several tests compare with."""


@pytest.fixture
def trained(run_sparring: RunCommand, movielens: Path) -> Trained:
    """Trains some steps on the real ratings; returns the result."""

    def run(*tiers: Any, method: str = "adagrad", **settings: Any) -> dict[str, Any]:
        overrides = ["training.steps=60", f"optimizer.sparse.name={method}"]
        if tiers:
            options = json.dumps({"tiers": tiers, **settings})
            overrides += ["storage.backend=tiered", f"storage.options={options}"]
        elif method in _PLAIN:
            return _PLAIN[method]
        config = ROOT / "configs/movielens.yaml"
        ended = run_sparring("train", config, f"data.path={movielens}", *overrides, "--json")
        assert ended.code == 0, ended.err
        found: dict[str, Any] = ended.last_json
        return found if tiers else _PLAIN.setdefault(method, found)

    return run


@pytest.mark.parametrize("write", ["back", pytest.param("through", marks=pytest.mark.long)])
def test_ratings_over_hkv_and_sqlite_have_the_bits_of_the_plain_table(
    trained: Trained, tmp_path: Path, write: str
) -> None:
    sqlite = {"backend": "sqlite", "options": {"folder": str(tmp_path)}}
    stacked = trained(SMALL, sqlite, write=write)
    plain = trained()
    assert stacked["metrics"] == plain["metrics"]
    assert stacked["rows"] == plain["rows"]
    first, last = stacked["tiers"]["item"]
    assert first["backend"] == "hkv"
    assert first["rows"] <= 600 < plain["rows"]["item"]
    assert first["evictions"] > 0
    assert last["hits"] > 0
    assert last["bloom_skips"] > 0


@pytest.mark.long  # three tiers that end in RocksDB; the others are short
def test_ratings_over_three_tiers_have_the_bits_of_the_plain_table(trained: Trained) -> None:
    stacked = trained(SMALLER, SMALL, "memory")
    plain = trained()
    assert stacked["metrics"] == plain["metrics"]
    assert stacked["rows"] == plain["rows"]


@pytest.mark.parametrize(
    "above",
    [
        pytest.param([SMALL], id="two tiers", marks=pytest.mark.long),
        pytest.param([SMALLER, SMALL], id="three tiers"),
    ],
)
def test_ratings_over_hkv_and_rocksdb_have_the_bits_of_the_plain_table(
    trained: Trained, tmp_path: Path, above: list[Any]
) -> None:
    pytest.importorskip("sparring_rocksdb", reason="sparring-rocksdb is not installed")
    rocksdb = {"backend": "rocksdb", "options": {"path": str(tmp_path)}}
    stacked = trained(*above, rocksdb)
    assert stacked["metrics"] == trained()["metrics"]
    assert stacked["rows"] == trained()["rows"]
    # In the tier, or on their way to it: rows are written in the background.
    assert stacked["tiers"]["item"][-1]["hits"] > 0


def test_ratings_over_hkv_and_redis_have_the_bits_of_the_plain_table(
    trained: Trained, own_redis_server: Any
) -> None:
    stacked = trained(SMALL, {"backend": "redis", "options": {"url": own_redis_server.url}})
    assert stacked["metrics"] == trained()["metrics"]
    assert stacked["rows"] == trained()["rows"]
    # In the tier, or on their way to it: rows are written in the background.
    assert stacked["tiers"]["item"][-1]["hits"] > 0


def test_a_native_optimizer_also_has_the_bits_of_the_plain_table(trained: Trained) -> None:
    stacked = trained(SMALLER, SMALL, "memory", method="torch.optim:Adagrad")
    assert stacked["metrics"] == trained(method="torch.optim:Adagrad")["metrics"]
