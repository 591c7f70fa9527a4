"""What keeps the rows makes no difference to what is learnt, bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.cli import main

pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_hkv", reason="needs sparring-hkv")

ROOT = Path(__file__).parents[3]


@pytest.fixture
def trained(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What ``sparring train --json`` says at its end."""

    def train(config: str, *overrides: str) -> dict[str, Any]:
        assert main(["train", str(ROOT / "configs" / config), *overrides, "--json"]) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return {name: result[name] for name in ("metrics", "rows", "steps")}

    return train


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_ratings_are_learnt_as_with_a_table_in_memory(
    tmp_path: Path, optimizer: str, trained: Callable[..., dict[str, Any]]
) -> None:
    random = np.random.default_rng(5)
    users, items = random.integers(0, 40, 1500), random.integers(0, 300, 1500)
    scores = np.clip(np.round(6 + random.normal(size=40)[users] * 2) / 2, 0.5, 5)
    lines = [
        f"{user * 10**12 - 7},{item},{score},0"
        for user, item, score in zip(users, items, scores, strict=True)
    ]
    path = tmp_path / "ratings.csv"
    path.write_text("\n".join(["userId,movieId,rating,timestamp", *lines]) + "\n")
    given = [f"data.path={path}", "training.epochs=2", "data.batch_size=100"]
    given.append(f"optimizer.sparse.name={optimizer}")
    place = f"storage.options.path={tmp_path}/{{rank}}-of-{{world_size}}"
    assert trained("rocksdb.yaml", *given, place) == trained("movielens.yaml", *given)
    assert (tmp_path / "0-of-1").is_dir()


def test_movielens_is_learnt_as_with_a_table_in_memory(
    tmp_path: Path, trained: Callable[..., dict[str, Any]]
) -> None:
    folder = os.environ.get("SPARRING_TEST_DATA")
    root = Path(folder) if folder else ROOT.parent / "shared" / "data"
    path = root / "ml-latest-small" / "ratings.csv"
    if not path.exists():
        pytest.skip(f"needs {path}; SPARRING_TEST_DATA names the folder above ml-latest-small")
    given = [f"data.path={path}", "training.epochs=1"]
    stored = ["storage.backend=rocksdb", f"storage.options.path={tmp_path / 'rows'}"]
    assert trained("movielens.yaml", *given, *stored) == trained("movielens.yaml", *given)
