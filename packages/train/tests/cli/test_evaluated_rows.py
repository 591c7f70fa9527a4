"""``sparring evaluate`` uses all rows of a file that is not the run's own, and prints their number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sparring_cli.application import main

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

CONFIG = """
threads: 1
data: {kind: table, path: rows.csv, label: clicked, categorical: [user], split: {exact_fraction: 0.25},
  batch_size: 16}
model: {kind: dlrm, embedding_dim: 2, top_mlp: [2]}
snapshots: {url: runs}
"""


def write_rows(name: str, count: int) -> None:
    rows = [f"{each % 2},{each % 7}" for each in range(count)]
    Path(name).write_text("\n".join(["clicked,user", *rows]) + "\n")


def test_all_rows_of_another_file_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows("rows.csv", 40)
    write_rows("other.csv", 12)
    shutil.copy("rows.csv", "moved.csv")
    Path("run.yaml").write_text(CONFIG)
    assert main(["train", "run.yaml"]) == 0
    for given, count in [
        ([], 10),
        (["data.path=moved.csv"], 10),
        (["data.path=other.csv"], 12),
        (["data.path=other.csv", "data.split={exact_fraction: 0.5}"], 6),
    ]:
        capfd.readouterr()
        assert main(["evaluate", "runs", *given, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["evaluated"] == count
    assert main(["evaluate", "runs", "data.path=other.csv"]) == 0
    assert ", 12 rows" in capfd.readouterr().out
