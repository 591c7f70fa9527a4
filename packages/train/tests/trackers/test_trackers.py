"""Trackers record what a run measures, and their failures do not end it."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sparring import make_plugin_manager
from sparring.contracts import API_VERSION, hookimpl
from sparring.errors import ConfigError, PluginError
from sparring.plugins.distributions import PluginSource
from sparring_testing.fixtures.runs import train_run
from sparring_train import TrackerDescriptor, TrackerRequest
from sparring_train.run.result import SilentProgress
from sparring_train.trackers import background, run_trackers

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

CONFIG = """
seed: 3
threads: 1
data: {kind: synthetic_criteo, samples: 96, test_samples: 64, batch_size: 32, max_ids: 40}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [3], top_mlp: [3]}
storage: {backend: memory}
training: {log_interval_seconds: 1.0e-9, evaluation_interval_steps: 2}
"""


class Told(SilentProgress):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def train(trackers: str, *words: str, plugin: Any = None) -> Told:
    manager = make_plugin_manager()
    if plugin is not None:
        manager.load(PluginSource("trials", "sparring-trials", "1", lambda: plugin))
    told = Told()
    train_run(CONFIG, f"training.trackers={trackers}", *words, manager=manager, progress=told)
    return told


class Recorder:
    """A tracker in memory."""

    def __init__(self, request: TrackerRequest) -> None:
        self.request = request
        self.metrics: list[tuple[int, Mapping[str, float]]] = []
        self.files: list[Path] = []
        self.succeeded: bool | None = None

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics.append((step, metrics))

    def log_file(self, path: Path) -> None:
        self.files.append(path)

    def close(self, *, succeeded: bool) -> None:
        self.succeeded = succeeded


class Plugin:
    """Registers the tracker `trial`."""

    def __init__(self, made: type[Recorder]) -> None:
        self.made, self.opened = made, list[Recorder]()

    @hookimpl(optionalhook=True)
    def sparring_register_trackers(self) -> list[TrackerDescriptor]:
        return [TrackerDescriptor(name="trial", api_version=API_VERSION, open=self.open)]

    def open(self, request: TrackerRequest) -> Recorder:
        self.opened.append(self.made(request))
        return self.opened[-1]


@pytest.mark.usefixtures("without_figures")
def test_a_tracker_receives_configuration_metrics_and_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    plugin = Plugin(Recorder)
    report = tmp_path / "report.html"
    train("[{kind: trial, url: 'http://t', name: own}]", f"report.path={report}", plugin=plugin)
    [found] = plugin.opened
    assert (found.request.url, found.request.project, found.request.name) == (
        "http://t",
        "sparring",
        "own",
    )
    assert found.request.config["model"]["embedding_dim"] == 2
    steps = [step for step, each in found.metrics if "loss" in each]
    assert steps == [1, 2, 3]
    assert all(math.isfinite(value) for _, each in found.metrics for value in each.values())
    assert [step for step, each in found.metrics if "test/auc" in each] == [2, 3]
    last_step, last = found.metrics[-1]
    assert last_step == 3
    assert (
        last["final/auc"]
        == [each["test/auc"] for _, each in found.metrics if "test/auc" in each][-1]
    )
    assert found.files == [report]
    assert found.succeeded


class Stopping(Told):
    def on_step(self, step: int, loss: float, samples: int) -> None:
        raise RuntimeError("the disk is full")


def test_a_failed_run_is_recorded_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Plugin(Recorder)
    monkeypatch.setitem(globals(), "Told", Stopping)
    with pytest.raises(RuntimeError, match="disk is full"):
        train("[trial]", plugin=plugin)
    assert [each.succeeded for each in plugin.opened] == [False]
    mlflow = pytest.importorskip("mlflow", reason="pip install 'sparring-train[mlflow]'")
    pytest.importorskip("alembic", reason="a store of MLflow in SQLite needs alembic")
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    with pytest.raises(RuntimeError, match="disk is full"):
        train(f"[{{kind: mlflow, url: '{store}'}}]")
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("sparring").experiment_id
    assert [each.info.status for each in client.search_runs([experiment])] == ["FAILED"]


class Failing(Recorder):
    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if step != 2:
            raise ConnectionError(f"step {step} was not accepted\nsecond line")
        super().log_metrics(step, metrics)


def test_a_failing_tracker_is_reported_once_and_training_continues() -> None:
    plugin = Plugin(Failing)
    told = train("[trial]", plugin=plugin)
    [found] = plugin.opened
    assert {step for step, _ in found.metrics} == {2}
    warning, count = (each for each in told.messages if "trial" in each)
    assert warning == (
        "warning: tracker trial failed: step 1 was not accepted; training continues, and further "
        "failures are only counted"
    )
    # The losses and the evaluation of steps 1 and 3, and the final values.
    assert count == "tracker trial: 4 calls failed; their values are missing there"


def test_a_tracker_that_does_not_answer_does_not_delay_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_trackers, "_CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(background, "_MAX_CALLS", 2)
    until = threading.Event()

    class Blocked(Recorder):
        def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
            until.wait(60)

    told = train("[trial]", plugin=Plugin(Blocked))
    until.set()
    assert any("2 calls are waiting" in each for each in told.messages)


def test_trackers_that_cannot_be_opened_are_errors_before_training() -> None:
    with pytest.raises(PluginError, match=r"trackers 'wandbb' is unknown|tracker"):
        train("[wandbb]")

    class Unreachable(Recorder):
        def __init__(self, request: TrackerRequest) -> None:
            raise ConnectionError("connection refused")

    expected = (
        "training.trackers: opening trial at http://t failed: connection refused; correct url, start "
        "the server, or remove it from training.trackers"
    )
    with pytest.raises(ConfigError, match=expected):
        train("[{kind: trial, url: 'http://t'}]", plugin=Plugin(Unreachable))


def test_a_missing_package_is_named_with_the_line_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_trackers, "find_spec", lambda _: None)
    with pytest.raises(PluginError, match=r"run: pip install 'sparring-train\[mlflow\]'"):
        train("[mlflow]")


def test_tensorboard_reads_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'sparring-train[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(f"[{{kind: tensorboard, url: {tmp_path}, project: clicks, name: own}}]")
    found = EventAccumulator(str(tmp_path / "clicks/own"))
    found.Reload()
    assert [each.step for each in found.Scalars("loss")] == [1, 2, 3]
    assert 0 < found.Scalars("test/auc")[-1].value < 1
    [text] = found.Tensors("configuration")
    assert b'"embedding_dim": 2' in text.tensor_proto.string_val[0]


def test_mlflow_reads_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'sparring-train[mlflow]'")
    pytest.importorskip("alembic", reason="a store of MLflow in SQLite needs alembic")
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    train(f"[{{kind: mlflow, url: '{store}', project: clicks, name: own}}]", "report.path=r.html")
    client = mlflow.MlflowClient(tracking_uri=store)
    [run] = client.search_runs([client.get_experiment_by_name("clicks").experiment_id])
    assert (run.info.run_name, run.info.status) == ("own", "FINISHED")
    assert run.data.params["model.embedding_dim"] == "2"
    assert sorted(each.step for each in client.get_metric_history(run.info.run_id, "loss")) == [
        1,
        2,
        3,
    ]
    assert 0 < run.data.metrics["final/auc"] < 1
    names = {each.path for each in client.list_artifacts(run.info.run_id)}
    assert names == {"configuration.json", "r.html"}


def records_of(log: bytes) -> Iterator[bytes]:
    """Yields the records of a .wandb file: a header of 7 bytes, then the log format of LevelDB, whose
    blocks contain parts with checksum, length and type (1: whole, 2: first, 3: middle, 4: last)."""
    at, block, whole = 7, 32_768, b""
    while at + 7 <= len(log):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", log, at + 4)
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def test_wandb_reads_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'sparring-train[wandb]'")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    train("[{kind: wandb, project: clicks, name: own}]")
    [file] = tmp_path.rglob("*.wandb")
    # The process of W&B writes its file after `finish` has returned.
    records: list[Any] = []
    end = time.monotonic() + 60
    while not any(each.WhichOneof("record_type") == "exit" for each in records):
        assert time.monotonic() < end, "W&B has not completed its file"
        time.sleep(0.05)
        records = [Record.FromString(each) for each in records_of(file.read_bytes())]
    [run] = [each.run for each in records if each.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name) == ("clicks", "own")
    items = [
        {item.key or "/".join(item.nested_key): item.value_json for item in each.history.item}
        for each in records
        if each.WhichOneof("record_type") == "history"
    ]
    assert [each["step"] for each in items if "loss" in each] == ["1", "2", "3"]
    assert any("final/auc" in each for each in items)
