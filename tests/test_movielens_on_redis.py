"""Tests that training gives the same results with every storage."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sparring_cli.application import main

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """The first ratings of the real file."""
    folder = os.environ.get("SPARRING_TEST_DATA")
    root = Path(folder) if folder else ROOT.parent / "shared" / "data"
    path = root / "ml-latest-small" / "ratings.csv"
    if not path.exists():
        pytest.skip(f"needs {path}; SPARRING_TEST_DATA names the folder above ml-latest-small")
    part = tmp_path / "ratings.csv"
    part.write_text("".join(path.read_text().splitlines(keepends=True)[:15_001]))
    return part


def trained(capsys: pytest.CaptureFixture[str], ratings: Path, *overrides: str) -> object:
    arguments = [f"data.path={ratings}", "training.epochs=2", "data.batch_size=256", *overrides]
    assert main(["train", str(ROOT / "configs/movielens.yaml"), *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return found["metrics"], found["rows"], found["steps"]


@pytest.mark.parametrize("kind", ["standalone", "cluster"])
def test_the_rmse_on_redis_equals_hkv_bit_for_bit(
    kind: str, ratings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testing = pytest.importorskip("sparring_redis.testing")
    if reason := testing.redis_server_missing():
        pytest.skip(reason)
    expected = trained(capsys, ratings)
    with testing.RedisServer() if kind == "standalone" else testing.RedisCluster() as server:
        options = ["storage.backend=redis", f"storage.options.url={server.url}"]
        assert trained(capsys, ratings, *options) == expected
