"""The command, its JSON and the report name the reason of an undefined metric."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sparring_cli.application import main

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

pytestmark = pytest.mark.usefixtures("without_figures")

CONFIG = """
threads: 1
data: {kind: table, path: rows.csv, label: clicked, categorical: [user, item], split: {column: part},
       required: [user, item], batch_size: 16}
storage: {backend: memory}
snapshots: {url: runs}
report: {path: report.html}
"""
CLICKS = "model: {kind: dlrm, embedding_dim: 2, top_mlp: [2]}\n"
TOWERS = """
model: {kind: two_towers, embedding_dim: 2, user: [user], item: [item], layers: [2], positive: 1}
"""


@pytest.mark.parametrize(
    ("model", "test_label", "metric", "why"),
    [
        (CLICKS, "0", "auc", "all 4 test rows have the label 0"),
        (CLICKS, "1", "auc", "all 4 test rows have the label 1"),
        (TOWERS, "0", "recall@10", "no test row has a label of at least 1 (model.positive)"),
    ],
    ids=["no click", "clicks alone", "no positive row"],
)
def test_an_undefined_metric_is_reported_with_its_reason(
    model: str,
    test_label: str,
    metric: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if model is TOWERS:
        pytest.importorskip("sparring_packed", reason="rankings need sparring-packed")
    monkeypatch.chdir(tmp_path)
    rows = [f"{each % 2},u{each % 5},i{each % 7},train" for each in range(64)]
    rows += [f"{test_label},u{each},i{each},test" for each in range(4)]
    Path("rows.csv").write_text("\n".join(["clicked,user,item,part", *rows]) + "\n")
    Path("run.yaml").write_text(CONFIG + model)
    assert main(["train", "run.yaml", "--json"]) == 0
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert result["metrics"][metric] is None or math.isnan(result["metrics"][metric])
    assert metric in result["undefined_metrics"]
    assert why in result["undefined_metrics"]
    assert "data.split" in result["undefined_metrics"]
    assert f"Undefined: {result['undefined_metrics']}" in Path("report.html").read_text()
    assert main(["evaluate", "runs"]) == 0
    assert f"undefined metrics: {why}" in capfd.readouterr().out
