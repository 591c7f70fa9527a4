"""Tests that the dashboards and rules are current, and that their queries use existing metrics."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from ruamel.yaml import YAML

from sparring_serve.metrics import HELP
from sparring_testing.fixtures.runs import train_run

pytest.importorskip("torch", reason="pip install 'sparring[torch]'")
pytest.importorskip("prometheus_client", reason="pip install 'sparring[metrics]'")

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
dashboards: Any = import_module("dashboards")

REFERENCE = (ROOT / "docs/reference/metrics.md").read_text()

STREAM = """
seed: 3
threads: 1
data: {kind: stream, label: clicked, categorical: [user, item], event_time: at, batch_size: 64,
  stop_at_end: true, max_milliseconds: 20000}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [], top_mlp: [8]}
storage:
  backend: tiered
  options: {tiers: [{backend: memory, budget_bytes: 2 KiB}, memory]}
metrics: {window_seconds: 100, format: prometheus}
publish: {every_seconds: 100, gate: {}}
"""

QUERIES = [
    (name, panel.title, query.query)
    for name, dashboard in dashboards.read_dashboards().items()
    for panel in dashboards.panels_of(dashboard)
    for query in panel.queries
]


def test_generated_files_are_current() -> None:
    for path, content in dashboards.generated_files().items():
        assert path.read_text() == content, f"run: python tools/dashboards.py ({path.name})"


def metrics_of(query: str) -> set[str]:
    return set(re.findall(r"\bsparring_\w+", query))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Returns the metrics of a server, and of a run that reads a stream and publishes versions."""
    folder = tmp_path_factory.mktemp("run")
    random, count = np.random.default_rng(5), 640
    columns = {
        "user": random.integers(0, 50, count),
        "item": random.integers(0, 80, count),
        "clicked": random.integers(0, 2, count),
        "at": 1_700_000_000 + np.arange(count),
    }
    (folder / "events").mkdir()
    parquet.write_table(pyarrow.table(columns), folder / "events/0.parquet")
    parquet.write_table(pyarrow.table(columns).slice(600), folder / "test.parquet")
    words = {
        "data.url": "events",
        "data.test_path": "test.parquet",
        "metrics.path": "metrics.prom",
        "snapshots.url": "run",
        "publish.url": "served",
    }
    train_run(STREAM, *(f"{key}={folder / path}" for key, path in words.items()))
    text = (folder / "metrics.prom").read_text()
    of_run = set(re.findall(r"^(sparring_\w+?)(?:\{| )", text, re.MULTILINE))
    assert "sparring_steps_total" in of_run
    return of_run | {f"sparring_serving_{each}" for each in HELP}


def test_queries_use_exported_and_documented_metrics(exported: set[str]) -> None:
    rules = YAML(typ="safe", pure=True).load(dashboards.RULES.read_text())["groups"][0]["rules"]
    queries = [*QUERIES, *(("rules", each["alert"], each["expr"]) for each in rules)]
    assert len(queries) > 80
    for dashboard, title, query in queries:
        for name in metrics_of(query):
            found = name in exported or re.sub(r"_(bucket|count)$", "", name) in exported
            assert found, f"{dashboard}, {title}: no process exports {name}"
            if not name.startswith("sparring_serving_"):
                short = re.sub(r"_(total|bucket|count)$", "", name).split("_", 2)[2:] or ["steps"]
                pattern = short[0].replace("_", "[._]")
                assert re.search(rf"\b{pattern}\b", REFERENCE), f"metrics.md: no {name}"


def test_every_rule_has_its_condition_tested_by_promtool() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip(
            "promtool is not installed; on Debian and Ubuntu run: apt-get install prometheus"
        )
    ran = subprocess.run(
        [promtool, "test", "rules", dashboards.RULES.with_name("rules_test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
