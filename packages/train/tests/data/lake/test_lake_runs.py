"""Runs on a table of a lakehouse: the version is recorded, and `--resume` reads the same data."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest

from sparring import latest_snapshot
from sparring.errors import ConfigError
from sparring_testing.fixtures.runs import train_run
from sparring_train.data.lake import table
from sparring_train.data.table import dataset
from sparring_train.report.run_data import read_report

from ..table.table_files import click_log
from .lake_tables import make_lake

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

if TYPE_CHECKING:
    from ...config.config_runs import Ran, Runs

LOG = click_log(300).append_column("day", pyarrow.array(["2026-01-31"] * 300))


def text_of(lake: Any, folder: Path) -> str:
    return f"""
data:
  kind: table
  path: {lake.url}
  label: clicked
  categorical: [user, item]
  batch_size: 64
model: {{kind: dlrm, embedding_dim: 2, bottom_mlp: [3], top_mlp: [3]}}
snapshots: {{url: {folder}/run}}
threads: 1
"""


@pytest.mark.usefixtures("without_figures")
def test_a_resumed_run_reads_the_version_that_it_started_with(tmp_path: Path) -> None:
    lake = make_lake("delta", tmp_path)
    lake.add(LOG.slice(0, 200))
    (tmp_path / "whole").mkdir()
    whole = train_run(text_of(lake, tmp_path / "whole"), "training.epochs=2")
    train_run(text_of(lake, tmp_path), f"report.path={tmp_path}/report.html")
    run = latest_snapshot(f"{tmp_path}/run").state("run").values
    report = read_report(tmp_path / "report.html")
    assert run["data"]["version"] == report.config["data"]["version"] == "0"

    lake.add(LOG.slice(200))
    resumed = train_run(text_of(lake, tmp_path), "training.epochs=2", "snapshots.resume=true")
    assert (resumed.steps, resumed.metrics) == (whole.steps, whole.metrics)

    with pytest.raises(ConfigError, match=r"its run has data\.version: 0, this one has 1; use the"):
        train_run(text_of(lake, tmp_path), "snapshots.resume=true", "data.version=1")
    shutil.rmtree(tmp_path / "a table")
    lake.add(LOG.slice(100))
    with pytest.raises(
        ConfigError, match=r"its run has data_fingerprint .*; restore the table, or"
    ):
        train_run(text_of(lake, tmp_path), "training.epochs=3", "snapshots.resume=true")


def test_ranks_read_one_version_and_all_of_them_reject_other_data(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, newest = make_lake("delta", runs.folder), table.open_lake

    def open_after_another_writer(path: str, version: str | None, *rest: Any) -> Any:
        if version is None:
            lake.add(LOG.slice(200, 20))
        return newest(path, version, *rest)

    def run(*overrides: str) -> list[Future[Ran]]:
        runs.parts.groups.clear()
        places = [
            f"{{backend: threads, options: {{rank: {rank}, world_size: 2}}}}" for rank in (0, 1)
        ]
        configs = [
            runs.config(
                text_of(lake, runs.folder),
                "collective.backend=threads",
                f"rendezvous={place}",
                *overrides,
            )
            for place in places
        ]
        with ThreadPoolExecutor(2) as threads:
            return [threads.submit(runs.train, each) for each in configs]

    lake.add(LOG.slice(0, 200))
    with monkeypatch.context() as patch:
        patch.setattr(dataset, "open_lake", open_after_another_writer)
        # A rank that looked for the newest version itself would find version 2.
        assert [each.result().end.extra["data_version"] for each in run()] == [1, 1]

    shutil.rmtree(runs.folder / "a table")
    for begin in (100, 200):
        lake.add(LOG.slice(begin, 100))
    for each in run("training.epochs=2", "snapshots.resume=true"):
        with pytest.raises(
            ConfigError, match=r"its run has data_fingerprint .*; restore the table"
        ):
            each.result()
