"""Runs that release 0.1 saved are continued by every release.

`format_v1/<framework>` was written by `python packages/train/tests/test_format_v1.py FRAMEWORK FOLDER` of
release 0.1, and `format_v1/table` by the configuration `TABLE`. They are never written again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sparring.snapshot.retention import latest_snapshot
from sparring_cli.application import main

FOLDER = Path(__file__).parent / "format_v1"

CONFIG = """
seed: 3
threads: 1
data: {kind: synthetic_criteo, samples: 64, test_samples: 32, batch_size: 32, max_ids: 9}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [3], top_mlp: [3]}
tables: {admission: {kind: frequency, k: 1}}
storage: {backend: memory}
snapshots: {url: runs}
"""


@pytest.mark.parametrize(
    ("framework", "package"), [("torch", "sparring_torch"), ("tensorflow", "sparring_tf")]
)
def test_a_run_of_release_0_1_continues(
    framework: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip(package, reason=f"needs {package}")
    if framework == "tensorflow":
        pytest.importorskip("tensorflow", reason="needs TensorFlow")
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    shutil.copytree(FOLDER / framework, "runs")
    before = latest_snapshot("runs")
    assert before is not None
    assert before.step == 2
    arguments = ["train", "run.yaml", f"framework={framework}", "--resume", "training.epochs=2"]
    code = main(arguments)
    said = capfd.readouterr().err
    assert code == 0, said
    assert "resumed from" in said
    assert "after step 2" in said
    assert "ordinary parameters start from initial values" not in said
    after = latest_snapshot("runs")
    assert after is not None
    assert after.step == 4


TABLE = """
seed: 4
threads: 1
data:
  {kind: table, path: logs, label: clicked, categorical: [user], batch_size: 50, split: {fraction: 0.2}}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [2], top_mlp: [8]}
storage: {backend: memory}
snapshots: {url: runs}
optimizer: {sparse: {name: adam, lr: 0.1}, dense: {name: adam, lr: 0.05}}
"""
"""The run of `format_v1/table`: one epoch, whose test rows were drawn by their position."""


def test_a_run_that_drew_test_rows_by_position_continues_to_do_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sparring_torch", reason="needs sparring_torch")
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(TABLE)
    shutil.copytree(FOLDER / "table/logs", "logs")

    def last_line(*arguments: str) -> dict[str, Any]:
        assert main([*arguments, "--json"]) == 0
        found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
        return found

    # The metrics of release 0.1, with 60 test rows of 300.
    first = pytest.approx({"auc": 0.6416666666666667, "log_loss": 0.6516780717516413}, rel=1e-3)
    second = pytest.approx({"auc": 0.7166666666666667, "log_loss": 0.6273768267591797}, rel=1e-3)
    shutil.copytree(FOLDER / "table/step-000000000005", "runs/step-000000000005")
    assert last_line("evaluate", "runs")["metrics"] == first
    if find_spec("sparring_serve") is not None and find_spec("sparring_packed") is not None:
        options = ("--output", "served", "--quantize", "fp16", "--evaluate", "run.yaml")
        quality = last_line("publish", "runs", *options)["quality"]
        assert {quality["metric"]: quality["before"]} == pytest.approx({"auc": 0.6416666666666667})
    resumed = last_line("train", "run.yaml", "--resume", "training.epochs=2")
    assert (resumed["steps"], resumed["metrics"]) == (10, second)
    assert last_line("evaluate", "runs")["metrics"] == second
    # A second resume finds the way of drawing in the new snapshot.
    assert last_line("train", "run.yaml", "--resume", "training.epochs=3")["steps"] == 15
    assert main(["train", "run.yaml", "--resume", "training.epochs=4", "data.draw=row"]) == 2
    assert "its run has data.draw: position, this one has row" in capfd.readouterr().err
    new = last_line("train", "run.yaml", "snapshots.url=others")
    assert new["metrics"] != first
    assert last_line("evaluate", "others")["metrics"] == pytest.approx(new["metrics"])


if __name__ == "__main__":
    framework, folder = sys.argv[1:]
    target = Path(folder).absolute()
    os.chdir(tempfile.mkdtemp())
    Path("run.yaml").write_text(CONFIG)
    assert main(["train", "run.yaml", f"framework={framework}"]) == 0
    shutil.copytree("runs", target)
