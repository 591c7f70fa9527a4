"""A log of strings trains to the same metrics, bit for bit, as a log of their hashes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pyarrow = pytest.importorskip("pyarrow", reason="writes Parquet")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from pyarrow import csv, parquet

from sparring import hash_strings
from sparring_cli.application import main

CONFIG = """
seed: 3
threads: 1
data:
  kind: table
  path: {path}
  label: clicked
  categorical: [user, item]
  numeric: [price]
  batch_size: 128
  draw: position      # the names of the files differ
model: {{kind: dlrm, embedding_dim: 4, bottom_mlp: [8], top_mlp: [8]}}
training: {{epochs: 2}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("strings")
    random = np.random.default_rng(5)
    users, items = random.integers(0, 50, 900), random.integers(0, 80, 900)
    strings = {"user": [f"user {n}" for n in users], "item": [f"SKU_{n}" for n in items]}
    hashes = {name: hash_strings(each) for name, each in strings.items()}
    others = {
        "price": random.normal(size=900),
        "clicked": (users + items + random.integers(0, 9, 900)) % 2,
    }
    for name, ids in (("strings", strings), ("hashes", hashes)):
        table = pyarrow.table({**ids, **others})
        csv.write_csv(table, place / f"{name}.csv")
        parquet.write_table(table, place / f"{name}.parquet", row_group_size=100)
        for ending in ("csv", "parquet"):
            path = place / f"{name}.{ending}"
            (place / f"{name}.{ending}.yaml").write_text(CONFIG.format(path=path))
    return place


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_strings_train_as_their_hashes(
    ending: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for name in ("strings", "hashes"):
        assert main(["train", str(folder / f"{name}.{ending}.yaml"), "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    _check(results)


@pytest.mark.long
@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_strings_train_as_their_hashes_on_ranks(ending: str, world_size: int, folder: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(world_size)]
    results = []
    for name in ("strings", "hashes"):
        command = ["-m", "sparring", "train", str(folder / f"{name}.{ending}.yaml"), "--json"]
        ran = subprocess.run(
            launcher + command, capture_output=True, text=True, timeout=150, check=False
        )
        assert ran.returncode == 0, ran.stderr
        results.append(json.loads(ran.stdout.splitlines()[-1]))
    _check(results)


def _check(results: list[dict[str, Any]]) -> None:
    strings, hashes = results
    assert strings["metrics"] == hashes["metrics"]
    assert strings["rows"] == hashes["rows"] == {"user": 50, "item": 80}
    assert strings["steps"] > 8


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_run_on_strings_is_not_resumed_with_numbers(
    ending: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / f"data.{ending}"
    data.write_bytes((folder / f"strings.{ending}").read_bytes())
    run = tmp_path / "run.yaml"
    run.write_text(CONFIG.format(path=data) + f"snapshots: {{url: {tmp_path / 'saved'}}}\n")
    assert main(["train", str(run)]) == 0
    data.write_bytes((folder / f"hashes.{ending}").read_bytes())
    capsys.readouterr()
    assert main(["train", str(run), "training.epochs=3", "--resume"]) == 2
    told = capsys.readouterr().err
    assert "ids of 'user' made from strings, the data now contain integers" in told
