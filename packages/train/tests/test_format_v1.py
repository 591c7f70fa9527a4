"""Runs that release 0.1 saved are continued by every release.

`format_v1/<framework>` was written by `python packages/train/tests/test_format_v1.py FRAMEWORK FOLDER` of
release 0.1, and is never written again.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

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


if __name__ == "__main__":
    framework, folder = sys.argv[1:]
    target = Path(folder).absolute()
    os.chdir(tempfile.mkdtemp())
    Path("run.yaml").write_text(CONFIG)
    assert main(["train", "run.yaml", f"framework={framework}"]) == 0
    shutil.copytree("runs", target)
