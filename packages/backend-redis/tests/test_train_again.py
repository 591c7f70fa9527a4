"""`sparring train` over rows in Redis that an earlier run left: rejected, or resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring_cli.application import main
from sparring_redis.testing.server import RedisServer
from sparring_testing.fixtures.runs import write_ratings

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

CONFIG = """
seed: 3
threads: 1
data: {kind: table, path: ratings.csv, batch_size: 32, label: rating, categorical: [user, item],
  required: [user, item], split: {exact_fraction: 0.1}}
model: {kind: matrix_factorization, dim: 4}
training: {epochs: 2}
"""


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(5)
    write_ratings(Path("ratings.csv"), *(random.integers(1, 6, 200) for _ in range(3)))
    Path("run.yaml").write_text(CONFIG)


def storage(redis_server: RedisServer, prefix: str, is_stacked: bool) -> str:
    redis = {"backend": "redis", "options": {"url": redis_server.url, "prefix": prefix}}
    stack = {"backend": "tiered", "options": {"tiers": ["memory", redis]}}
    return f"storage={json.dumps(stack if is_stacked else redis)}"


@pytest.mark.parametrize("is_stacked", [False, True])
def test_a_run_from_the_beginning_is_rejected_if_rows_exist(
    is_stacked: bool,
    redis_server: RedisServer,
    new_prefix: Callable[[], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train(*more: str) -> tuple[int, dict[str, Any], str]:
        code = main(["train", "run.yaml", *more, "--json"])
        out, err = capsys.readouterr()
        result = json.loads(out.splitlines()[-1]) if code == 0 else {}
        return code, {name: result.get(name) for name in ("metrics", "rows", "steps")}, err

    prefix, other = new_prefix(), new_prefix()
    kept, saved = storage(redis_server, prefix, is_stacked), "snapshots.url=saved"
    assert train(kept, saved, "training.steps=4")[0] == 0

    code, _, said = train(kept)
    assert code == 2
    assert (
        f"redis (url {redis_server.url}, prefix {prefix}) already contains 5 rows of table 'user'"
        in said
    )
    assert "resume the earlier run (--resume), use another path or prefix" in said
    assert "step 1" not in said
    # Another prefix has no rows, and the rejected run changed none.
    code, expected, _ = train(storage(redis_server, other, is_stacked))
    assert code == 0
    assert train(kept, saved, "--resume")[:2] == (0, expected)
