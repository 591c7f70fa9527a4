"""Relative paths start at the file's folder, paths of overrides at the current directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparring import make_plugin_manager
from sparring_cli.application import main
from sparring_train.config.reading.loader import load_config, parse_config
from sparring_train.config.reading.printer import config_as_yaml

TEXT = """
data: {kind: table, path: day_0.tsv, label: clicked, categorical: [user]}
model: {kind: dlrm}
storage: {backend: persistent_test}
plan: plans/two.yaml
snapshots: {url: "s3://bucket/run"}
change_notes: {every_steps: 5, url: notes}
metrics: {path: "metrics-{rank}.jsonl"}
report: {path: ./reports/run.html, trace_path: trace.json}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "project/runs").mkdir(parents=True)
    (tmp_path / "project/runs/run.yaml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return "project/runs/run.yaml"


def test_paths_of_a_file_start_at_its_folder(file: str) -> None:
    config = load_config(file)
    assert config.data.path == "project/runs/day_0.tsv"
    assert config.plan == "project/runs/plans/two.yaml"
    assert config.snapshots.url == "s3://bucket/run"
    assert config.change_notes.url == "project/runs/notes"
    assert config.metrics.path == "project/runs/metrics-{rank}.jsonl"
    assert config.report.path == "project/runs/reports/run.html"
    assert config.report.trace_path == "project/runs/trace.json"
    os.chdir("project/runs")
    assert load_config("run.yaml").data.path == "day_0.tsv"
    assert load_config(Path.cwd() / "run.yaml").data.path == str(Path.cwd() / "day_0.tsv")


def test_paths_of_overrides_start_at_the_current_directory(file: str) -> None:
    given = ["data.path=mine.tsv", "snapshots={url: runs/a}", "plan=auto"]
    config = load_config(file, given)
    assert (config.data.path, config.snapshots.url, config.plan) == ("mine.tsv", "runs/a", "auto")
    # A section in an override belongs to the current directory as a whole.
    whole = load_config(
        file, ["data={kind: table, path: a.tsv, label: clicked, categorical: [user]}"]
    )
    assert whole.data.path == "a.tsv"
    elsewhere = load_config(file, given[:1], folder="/data")
    assert (elsewhere.data.path, elsewhere.plan) == ("mine.tsv", "/data/plans/two.yaml")
    assert parse_config(TEXT).data.path == "day_0.tsv"


def test_paths_in_options_of_backends_start_there_too(tmp_path: Path) -> None:
    pytest.importorskip("sparring_rocksdb", reason="needs sparring-rocksdb")
    text = TEXT.replace(
        "backend: persistent_test", "backend: rocksdb, options: {path: 'rows/{rank}'}"
    )
    (tmp_path / "one.yaml").write_text(text)
    tiers = "[hkv, {backend: rocksdb, options: {path: rows}}]"
    (tmp_path / "two.yaml").write_text(
        TEXT.replace("backend: persistent_test", f"backend: tiered, options: {{tiers: {tiers}}}")
    )
    manager = make_plugin_manager()
    for given in (None, manager):
        without_plan = ["plan=null"]
        one = load_config(tmp_path / "one.yaml", without_plan, plugin_manager=given)
        assert one.storage.options["path"] == f"{tmp_path}/rows/{{rank}}"
        two = load_config(tmp_path / "two.yaml", without_plan, plugin_manager=given)
        assert two.storage.options["tiers"][1]["options"]["path"] == f"{tmp_path}/rows"
        assert two.storage.options["tiers"][0] == "hkv"
        mine = load_config(tmp_path / "one.yaml", [*without_plan, "storage.options.path=mine"])
        assert mine.storage.options["path"] == "mine"


def test_the_shown_configuration_is_valid_in_any_folder(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", file, "data.path=mine.tsv"]) == 0
    shown = parse_config(capsys.readouterr().out, folder="/elsewhere")
    assert shown.data.path == f"{tmp_path}/mine.tsv"
    assert shown.snapshots.url == "s3://bucket/run"
    assert parse_config(config_as_yaml(shown), folder="/other") == shown


def test_the_command_accepts_another_folder_for_the_paths_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    (tmp_path / "run.yaml").write_text(
        "data: {kind: table, path: rows.csv, label: clicked, categorical: [user], batch_size: 2}\n"
        "model: {kind: dlrm}\n"
    )
    run = ["train", str(tmp_path / "run.yaml")]
    assert main(run) != 0
    assert f"{tmp_path}/rows.csv" in capsys.readouterr().err
    assert main([*run, "--relative-to", f"{tmp_path}/mounted"]) != 0
    assert f"{tmp_path}/mounted/rows.csv" in capsys.readouterr().err
