"""Tests that training gives the same results with every storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring_testing.fixtures.runs import RunCommand

ROOT = Path(__file__).resolve().parents[1]


def trained(run_sparring: RunCommand, ratings: Path, *overrides: str) -> object:
    arguments = [f"data.path={ratings}", "training.epochs=2", "data.batch_size=256", *overrides]
    ended = run_sparring("train", ROOT / "configs/movielens.yaml", *arguments, "--json")
    assert ended.code == 0, ended.err
    return [ended.last_json[each] for each in ("metrics", "rows", "steps")]


@pytest.mark.parametrize("server", ["own_redis_server", "redis_cluster"])
def test_the_rmse_on_redis_equals_hkv_bit_for_bit(
    server: str,
    movielens: Path,
    run_sparring: RunCommand,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    url = request.getfixturevalue(server).url
    part = tmp_path / "ratings.csv"
    part.write_text("".join(movielens.read_text().splitlines(keepends=True)[:15_001]))
    options = ["storage.backend=redis", f"storage.options.url={url}"]
    assert trained(run_sparring, part, *options) == trained(run_sparring, part)
