"""Tests that training with a stack of storages gives the same bits as with one table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
pytest.importorskip("sparring_sqlite", reason="the template backend is not installed")

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("SPARRING_TEST_DATA", ROOT.parent / "shared" / "data"))
RATINGS = DATA / "ml-latest-small" / "ratings.csv"

needs_ratings = pytest.mark.skipif(
    not RATINGS.exists(),
    reason=f"{RATINGS} is not there; SPARRING_TEST_DATA names another folder",
)
SMALL = {"backend": "hkv", "options": {"capacity": 600}}
SMALLER = {"backend": "hkv", "options": {"capacity": 300}}


@cache
def trained(tiers: str = "", method: str = "adagrad", **settings: Any) -> dict[str, Any]:
    """Trains some steps on the real ratings; returns the result."""
    overrides = [f"data.path={RATINGS}", "training.steps=60", f"optimizer.sparse.name={method}"]
    if tiers:
        options = {"tiers": json.loads(tiers), **settings}
        overrides += ["storage.backend=tiered", f"storage.options={json.dumps(options)}"]
    ran = subprocess.run(
        [sys.executable, "-m", "sparring", "train", str(ROOT / "configs/movielens.yaml"),
         *overrides, "--json"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


@needs_ratings
@pytest.mark.parametrize("write", ["back", pytest.param("through", marks=pytest.mark.long)])
def test_ratings_over_hkv_and_sqlite_have_the_bits_of_the_plain_table(
    tmp_path: Path, write: str
) -> None:
    sqlite = {"backend": "sqlite", "options": {"folder": str(tmp_path)}}
    stacked = trained(json.dumps([SMALL, sqlite]), write=write)
    plain = trained()
    assert stacked["metrics"] == plain["metrics"]
    assert stacked["rows"] == plain["rows"]
    first, last = stacked["tiers"]["item"]
    assert first["backend"] == "hkv"
    assert first["rows"] <= 600 < plain["rows"]["item"]
    assert first["evictions"] > 0
    assert last["hits"] > 0
    assert last["bloom_skips"] > 0


@needs_ratings
@pytest.mark.long  # three tiers that end in RocksDB; the others are short
def test_ratings_over_three_tiers_have_the_bits_of_the_plain_table() -> None:
    stacked = trained(json.dumps([SMALLER, SMALL, "memory"]))
    plain = trained()
    assert stacked["metrics"] == plain["metrics"]
    assert stacked["rows"] == plain["rows"]


@needs_ratings
@pytest.mark.parametrize(
    "above",
    [
        pytest.param([SMALL], id="two tiers", marks=pytest.mark.long),
        pytest.param([SMALLER, SMALL], id="three tiers"),
    ],
)
def test_ratings_over_hkv_and_rocksdb_have_the_bits_of_the_plain_table(
    tmp_path: Path, above: list[Any]
) -> None:
    pytest.importorskip("sparring_rocksdb", reason="sparring-rocksdb is not installed")
    rocksdb = {"backend": "rocksdb", "options": {"path": str(tmp_path)}}
    stacked = trained(json.dumps([*above, rocksdb]))
    assert stacked["metrics"] == trained()["metrics"]
    assert stacked["rows"] == trained()["rows"]
    # In the tier, or on their way to it: rows are written in the background.
    assert stacked["tiers"]["item"][-1]["hits"] > 0


@needs_ratings
def test_ratings_over_hkv_and_redis_have_the_bits_of_the_plain_table() -> None:
    testing = pytest.importorskip(
        "sparring_redis.testing", reason="sparring-redis is not installed"
    )
    if reason := testing.redis_server_missing():
        pytest.skip(reason)
    with testing.RedisServer() as server:
        redis = {"backend": "redis", "options": {"url": server.url}}
        stacked = trained(json.dumps([SMALL, redis]))
    assert stacked["metrics"] == trained()["metrics"]
    assert stacked["rows"] == trained()["rows"]
    # In the tier, or on their way to it: rows are written in the background.
    assert stacked["tiers"]["item"][-1]["hits"] > 0


@needs_ratings
def test_a_native_optimizer_also_has_the_bits_of_the_plain_table() -> None:
    stacked = trained(json.dumps([SMALLER, SMALL, "memory"]), method="torch.optim:Adagrad")
    assert stacked["metrics"] == trained(method="torch.optim:Adagrad")["metrics"]
