"""A run that is interrupted and resumed ends like an uninterrupted one.

The file is long because each way to interrupt a run is tested on the same data and configurations.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed; see nox -s tests")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from sparring import (
    SnapshotWriter,
    StepContainer,
    list_snapshots,
    make_plugin_manager,
    open_snapshot,
)
from sparring.adapter import restore
from sparring.contracts import Storage
from sparring.errors import ConfigError, InvalidArgumentError, SnapshotError
from sparring.snapshot.retention import latest_snapshot
from sparring_cli.application import main
from sparring_testing.fixtures.runs import snapshot_contents, write_clicks
from sparring_train.config.run import ReportConfig, RunConfig
from sparring_train.config.run_type import run_type
from sparring_train.loop.column_source import ColumnSource
from sparring_train.loop.position import read_position
from sparring_train.pytorch import trainer as torch_training
from sparring_train.pytorch.trainer import train
from sparring_train.report.run_data import SnapshotOfRun, read_report
from sparring_train.run.result import SilentProgress, TrainResult

CLICKS: dict[str, Any] = {
    "seed": 1,
    "threads": 1,
    "data": {
        "kind": "table",
        "label": "clicked",
        "categorical": ["user", "item", "place"],
        "numeric": ["price"],
        "batch_size": 40,
        "split": {"exact_fraction": 0.2},
    },
    "model": {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [8], "top_mlp": [8]},
    "training": {"epochs": 2, "evaluation_interval_steps": 15, "micro_batches": 2},
}

"""25 steps per epoch. `clicks` adds the path."""


@pytest.fixture(scope="module", autouse=True)
def clicks(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    CLICKS["data"]["path"] = str(write_clicks(path, 1250))


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "native adam": {"sparse": {"name": "torch.optim:Adam", "lr": 0.01}},
    "native nadam, momentum": {
        "sparse": {"name": "nadam", "lr": 0.01},
        "dense": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    },
    "fused adam, frequency": {"sparse": {"name": "adam", "lr": 0.01}},
    "fused rowwise adagrad, bloom": {"sparse": {"name": "rowwise_adagrad", "lr": 0.05}},
}

ADMISSIONS: dict[str, dict[str, Any] | None] = {
    "fused adam, frequency": {"kind": "frequency", "k": 3},
    "fused rowwise adagrad, bloom": {"kind": "bloom", "k": 2, "expected_keys": 5000},
}


class Interrupting(SilentProgress):
    """Ends a run by an error after a step."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.messages: list[str] = []

    def on_step(self, step: int, loss: float, samples: int) -> None:
        if step == self.at:
            raise KeyboardInterrupt

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def config(folder: Path, optimizer: str = "native adam", **snapshots: Any) -> RunConfig:
    chosen = CLICKS | {
        "optimizer": OPTIMIZERS[optimizer],
        "tables": {"admission": ADMISSIONS.get(optimizer)},
        "snapshots": {"url": str(folder), **snapshots},
    }
    return run_type().model_validate(chosen)


def of_steps(count: int, chosen: RunConfig) -> RunConfig:
    """The same run, which ends earlier."""
    training = chosen.training.model_copy(update={"steps": count})
    return chosen.model_copy(update={"training": training})


def run(chosen: RunConfig, interrupt_at: int = -1) -> tuple[TrainResult | None, list[str]]:
    progress = Interrupting(interrupt_at)
    try:
        return train(chosen, make_plugin_manager(), progress), progress.messages
    except KeyboardInterrupt:
        return None, progress.messages


@pytest.mark.parametrize(
    "optimizer",
    [
        "native nadam, momentum",
        "fused adam, frequency",
        pytest.param("native adam", marks=pytest.mark.long),
        pytest.param("fused rowwise adagrad, bloom", marks=pytest.mark.long),
    ],
)
def test_a_run_interrupted_at_random_steps_ends_with_the_same_bits(
    optimizer: str, tmp_path: Path
) -> None:
    expected, _ = run(config(tmp_path / "whole", optimizer))
    assert expected is not None
    assert expected.steps == 50
    steps = np.sort(np.random.default_rng(len(optimizer)).integers(10, 50, 2))
    chosen = config(tmp_path / "parts", optimizer, every_steps=9, full_every=3, resume=True)
    for at in steps.tolist():
        ended, _ = run(chosen, at)
        assert ended is None
    result, messages = run(chosen)
    assert any(message.startswith("resumed from") for message in messages)
    assert result is not None
    assert result.metrics == expected.metrics
    assert (result.rows, result.steps) == (expected.rows, expected.steps)
    assert (result.resumed_steps, expected.resumed_steps) == (int(steps[-1] - 1) // 9 * 9, 0)
    assert result.not_admitted == expected.not_admitted
    assert snapshot_contents(tmp_path / "parts") == snapshot_contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("backend", "policy"),
    [
        ("memory", "lru"),
        pytest.param("hkv", "lfu", marks=pytest.mark.slow),
        pytest.param("memory", "lfu", marks=pytest.mark.long),
        pytest.param("hkv", "lru", marks=pytest.mark.long),
    ],
)
def test_a_table_that_evicts_is_resumed_exactly(backend: str, policy: str, tmp_path: Path) -> None:
    storage = {"backend": backend, "options": {"capacity": 50, "policy": policy}}

    def evicting(folder: str, **snapshots: Any) -> RunConfig:
        chosen = config(tmp_path / folder, **snapshots).model_dump(exclude_none=True)
        return run_type().model_validate({**chosen, "storage": storage})

    expected, _ = run(evicting("whole"))
    assert expected is not None
    assert max(expected.rows.values()) < 100
    chosen = evicting("parts", every_steps=9, full_every=3, resume=True)
    for at in (17, 39):
        run(chosen, at)
    result, _ = run(chosen)
    assert result is not None
    assert result.metrics == expected.metrics
    assert snapshot_contents(tmp_path / "parts") == snapshot_contents(tmp_path / "whole")


def test_hyperparameters_equal_the_configuration_and_changes_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = config(tmp_path, "native nadam, momentum", every_steps=10, resume=True)
    run(began, 25)
    changed = began.model_dump(mode="json")
    changed["optimizer"]["sparse"]["lr"] = 0.5
    changed["optimizer"]["dense"] |= {"lr": 0.25, "momentum": 0.9}
    seen: dict[str, Any] = {}
    restore = torch_training._Trainer.restore

    def restore_and_look(trainer: Any, states: Any) -> None:
        restore(trainer, states)
        seen["tables"] = dict(trainer._tables.param_groups[0])
        seen["dense"] = dict(trainer._dense.param_groups[0])
        seen["momentum"] = [
            bool(each["momentum_buffer"].any()) for each in trainer._dense.state.values()
        ]
        seen["steps"] = trainer._tables.state_dict()["state"]

    monkeypatch.setattr(torch_training._Trainer, "restore", restore_and_look)
    result, messages = run(run_type().model_validate(changed))
    assert result is not None
    assert (seen["tables"]["lr"], seen["dense"]["lr"], seen["dense"]["momentum"]) == (
        0.5,
        0.25,
        0.9,
    )
    assert all(seen["momentum"])
    assert {int(each["step"]) for each in seen["steps"].values()} == {20}
    assert sorted(each.partition(";")[0].replace(" now", "") for each in messages[:-1]) == [
        "optimizer.dense.lr is 0.25",
        "optimizer.sparse.lr is 0.5",
    ]


def test_another_optimizer_of_ordinary_parameters_is_rejected(tmp_path: Path) -> None:
    began = config(tmp_path, "native nadam, momentum", every_steps=3, resume=True)
    run(began, 4)
    changed = began.model_dump(mode="json")
    changed["optimizer"]["dense"] = {"name": "adam", "lr": 0.01}
    with pytest.raises(ConfigError, match=r"run has optimizer.dense.name: sgd, this one has adam"):
        run(run_type().model_validate(changed))


def test_an_interrupted_pipelined_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    expected, _ = run(config(tmp_path / "whole", every_steps=25))
    assert expected is not None
    plain = config(tmp_path / "parts", every_steps=5, resume=True)
    training = plain.training.model_copy(update={"pipeline": True})
    chosen = plain.model_copy(update={"training": training})
    # An epoch has 25 steps: the next batch, of another epoch, is looked up when the 25th is saved.
    for at in (18, 27):
        run(chosen, at)
    result, messages = run(chosen)
    assert "after step 25" in messages[0]
    assert result is not None
    assert result.metrics == expected.metrics
    assert snapshot_contents(tmp_path / "parts") == snapshot_contents(tmp_path / "whole")


def test_a_run_continues_after_failed_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = run(config(tmp_path / "whole"))
    commit, calls = SnapshotWriter.commit, []

    def fails_at_first(writer: SnapshotWriter) -> Any:
        calls.append(writer.step)
        if len(calls) < 3:
            raise OSError("disk gone")
        return commit(writer)

    monkeypatch.setattr(SnapshotWriter, "commit", fails_at_first)
    result, messages = run(config(tmp_path / "run", every_steps=10))
    assert result is not None
    assert expected is not None
    assert result.metrics == expected.metrics
    told = [each for each in messages if "disk gone" in each]
    assert len(told) == 2
    assert "training continues" in told[0]
    assert calls == [10, 20, 30, 40, 50]
    assert len(list_snapshots(str(tmp_path / "run"))) == 3


def test_the_last_state_is_saved_even_if_the_background_save_of_the_last_step_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, calls = SnapshotWriter.commit, []

    def fails_at_first(writer: SnapshotWriter) -> Any:
        calls.append(writer.step)
        if len(calls) == 1:
            raise OSError("disk gone")
        return commit(writer)

    monkeypatch.setattr(SnapshotWriter, "commit", fails_at_first)
    result, messages = run(config(tmp_path / "run", every_steps=50))
    assert result is not None
    assert any("disk gone" in each for each in messages)
    assert calls == [50, 50]
    newest = latest_snapshot(str(tmp_path / "run"))
    assert newest is not None
    assert newest.step == 50


def test_a_run_continues_if_a_snapshot_cannot_even_begin(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    class Clearing(Interrupting):
        def on_step(self, step: int, loss: float, samples: int) -> None:
            if step == 5:
                folder.rmdir()
                folder.write_text("a file is in the way")
            if step == 25:
                folder.unlink()

    progress = Clearing(-1)
    train(config(folder, every_steps=10), make_plugin_manager(), progress)
    assert len([each for each in progress.messages if "training continues" in each]) == 2
    kept = [open_snapshot(each).step for each in list_snapshots(str(folder))]
    assert sorted(kept) == [30, 40, 50]


@pytest.mark.parametrize("place", ["a file", "below a file", "nowhere"])
def test_an_unwritable_folder_is_rejected_before_the_first_step(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("as it was")
    urls = {"a file": tmp_path / "file", "below a file": tmp_path / "file/a/b"}
    chosen = config(tmp_path)
    url = str(urls.get(place, "nowhere://bucket/run"))
    snapshots = chosen.snapshots.model_copy(update={"url": url, "every_steps": 20})

    class Counting(Interrupting):
        def on_step(self, step: int, loss: float, samples: int) -> None:
            raise AssertionError("a step was made")

    expected = "no file system for nowhere" if place == "nowhere" else "is not writable"
    with pytest.raises((ConfigError, InvalidArgumentError), match=expected):
        train(
            chosen.model_copy(update={"snapshots": snapshots}), make_plugin_manager(), Counting(-1)
        )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "as it was"


@pytest.mark.usefixtures("without_figures")
def test_a_report_continues_with_the_curves_of_the_snapshot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")

    def reporting(name: str, **snapshots: Any) -> RunConfig:
        report = ReportConfig(path=str(tmp_path / f"{name}.html"))
        return config(tmp_path / name, **snapshots).model_copy(update={"report": report})

    run(reporting("whole"))
    run(reporting("parts", every_steps=10, resume=True), interrupt_at=27)
    held = open_snapshot(tmp_path / "parts/step-000000000020").state("report").values
    assert (held["steps"], held["series"]["loss"]["steps"]) == (20, list(range(1, 21)))
    run(reporting("parts", every_steps=10, resume=True))
    whole, parts = (read_report(tmp_path / f"{name}.html") for name in ("whole", "parts"))
    measured = ("seconds/", "memory")
    kept = [
        {name: each for name, each in run.series.items() if not name.startswith(measured)}
        for run in (parts, whole)
    ]
    assert kept[0] == kept[1]
    # Times are added to those of the snapshot.
    seconds = parts.series["seconds/total"].values
    assert seconds == sorted(seconds)
    assert seconds[0] < 0.1
    assert seconds[-1] > held["series"]["seconds/total"]["values"][-1] > 0
    assert (parts.metrics, parts.resumed_steps) == (whole.metrics, 20)
    assert whole.slices
    assert not parts.slices
    assert "the run was resumed" in (tmp_path / "parts.html").read_text()
    newest = latest_snapshot(tmp_path / "parts")
    assert newest is not None
    assert parts.snapshot == SnapshotOfRun(
        url=newest.url, step=newest.step, manifest_hash=newest.manifest_hash
    )
    assert main(["report", str(tmp_path / "whole.html"), str(tmp_path / "parts")]) == 0


def test_a_finished_run_is_evaluated_again_and_changes_nothing(tmp_path: Path) -> None:
    first, _ = run(of_steps(4, config(tmp_path / "run")))
    before = snapshot_contents(tmp_path / "run")
    again, _ = run(of_steps(4, config(tmp_path / "run", resume=True)))
    assert first is not None
    assert again is not None
    assert again.metrics == first.metrics
    assert again.steps == first.steps == again.resumed_steps
    assert again.steps_per_second is None
    assert snapshot_contents(tmp_path / "run") == before
    assert len(list_snapshots(str(tmp_path / "run"))) == 1


def test_a_damaged_snapshot_is_reported_and_the_previous_one_is_loaded(tmp_path: Path) -> None:
    expected, _ = run(config(tmp_path / "run", every_steps=20))
    newest = latest_snapshot(str(tmp_path / "run"))
    assert newest is not None
    assert expected is not None
    damaged = next(Path(newest.url).glob("rows.*"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    result, messages = run(config(tmp_path / "run", every_steps=20, resume=True))
    assert "is unreadable" in messages[0]
    assert damaged.name in messages[0]
    assert "step-000000000040" in messages[1]
    assert result is not None
    assert result.metrics == expected.metrics
    # The damaged snapshot is kept for inspection; the new one has another name.
    assert open_snapshot(f"{newest.url}-2").step == 50


def test_data_are_opened_while_rows_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = run(config(tmp_path / "run", every_steps=30))
    newest = latest_snapshot(str(tmp_path / "run"))
    assert newest is not None
    shutil.rmtree(newest.url)
    is_open, open_data = threading.Event(), ColumnSource.batches

    def batches(source: ColumnSource, epoch: int) -> Any:
        for batch in open_data(source, epoch):
            is_open.set()
            yield batch

    def waiting(storage: Storage, *arguments: Any) -> None:
        assert is_open.wait(20), "no batch was read while rows came in"
        restore(storage, *arguments)

    monkeypatch.setattr(ColumnSource, "batches", batches)
    monkeypatch.setattr("sparring.engine.checkpoint.load.restore", waiting)
    result, messages = run(config(tmp_path / "run", every_steps=30, resume=True))
    assert expected is not None
    assert result is not None
    assert (result.resumed_steps, result.metrics) == (30, expected.metrics)
    assert "step-000000000030" in messages[0]


def test_unreadable_snapshots_are_an_error_and_no_snapshots_are_a_new_run(tmp_path: Path) -> None:
    _, messages = run(of_steps(2, config(tmp_path / "run", resume=True)))
    assert "training starts from the beginning" in messages[0]
    newest = latest_snapshot(str(tmp_path / "run"))
    assert newest is not None
    (Path(newest.url) / "manifest.json").write_text("{}")
    with pytest.raises(SnapshotError, match=r"no snapshot in .* is readable"):
        run(config(tmp_path / "run", resume=True))


def test_a_run_with_other_data_is_rejected(tmp_path: Path) -> None:
    run(of_steps(2, config(tmp_path / "run")))
    chosen = config(tmp_path / "run", resume=True)
    other = chosen.model_copy(update={"seed": 2})
    with pytest.raises(ConfigError, match="seed: 1, this one has 2"):
        run(other)
    other = run_type().model_validate(
        chosen.model_dump(exclude_none=True) | {"data": {**CLICKS["data"], "log1p": ["price"]}}
    )
    with pytest.raises(
        ConfigError, match=r"run has data.log1p: \[\], this one has .*price"
    ) as caught:
        run(other)
    assert caught.value.setting == "data.log1p"


@pytest.mark.parametrize("wrong", [{}, {"step": "3", "epoch": 0, "batch": 0}])
def test_an_invalid_position_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(SnapshotError, match="found no valid step, epoch and batch"):
        read_position("runs/films/step-000000000003", wrong)


def test_a_rejected_run_has_changed_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(of_steps(2, config(tmp_path / "run")))
    loads: list[str] = []
    monkeypatch.setattr(StepContainer, "load", lambda _, url, **__: loads.append(url))
    chosen = config(tmp_path / "run", resume=True)
    dense = {**chosen.optimizer.model_dump(), "dense": {"name": "sgd", "lr": 0.01}}
    for changed in ({"seed": 2}, {"optimizer": dense}):
        with pytest.raises(ConfigError):
            run(run_type().model_validate(chosen.model_dump(exclude_none=True) | changed))
    assert not loads


@pytest.mark.parametrize("full_every", [1, 3])
def test_a_run_from_the_beginning_is_rejected_if_another_one_was_saved(
    full_every: int, tmp_path: Path
) -> None:
    began = of_steps(4, config(tmp_path, every_steps=1, keep=2, full_every=full_every))
    run(began)
    before = list_snapshots(str(tmp_path))

    class Counting(Interrupting):
        def on_step(self, step: int, loss: float, samples: int) -> None:
            raise AssertionError("a step was made")

    for other in (began, began.model_copy(update={"seed": 2})):
        with pytest.raises(ConfigError, match=r"snapshots of a run.*--resume"):
            train(other, make_plugin_manager(), Counting(-1))
    assert list_snapshots(str(tmp_path)) == before


def test_damaged_snapshots_are_not_counted_by_the_run_that_continued(tmp_path: Path) -> None:
    chosen = config(tmp_path, every_steps=5, keep=2, resume=True)
    run(chosen, 22)
    damaged = next((tmp_path / "step-000000000020").glob("rows.*"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    _, messages = run(chosen, 23)
    assert any("resumed from" in each and "after step 15" in each for each in messages)
    names = ["step-000000000015", "step-000000000020", "step-000000000020-2"]
    assert [Path(each).name for each in list_snapshots(str(tmp_path))] == names
    # The run remembers it, although it need not try that snapshot again.
    run(chosen, 27)
    names = ["step-000000000020", "step-000000000020-2", "step-000000000025"]
    assert [Path(each).name for each in list_snapshots(str(tmp_path))] == names


def test_old_snapshots_are_removed(tmp_path: Path) -> None:
    run(of_steps(4, config(tmp_path / "run", every_steps=1, keep=2)))
    names = ["step-000000000003", "step-000000000004"]
    assert [Path(url).name for url in list_snapshots(str(tmp_path / "run"))] == names


def test_saves_follow_the_clock(tmp_path: Path) -> None:
    chosen = config(tmp_path / "run", every_minutes=1e-9, keep=1000, at_end=False)
    run(of_steps(7, chosen))
    assert len(list_snapshots(str(tmp_path / "run"))) == 7


@pytest.mark.slow  # a process imports PyTorch; interrupted runs in this process are tested above
def test_a_killed_run_resumes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected, _ = run(config(tmp_path / "whole"))
    assert expected is not None
    chosen = config(tmp_path / "killed", every_steps=3, keep=2)
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(chosen.model_dump(mode="json", exclude_none=True)))
    command = [sys.executable, "-m", "sparring", "train", str(path), "--json", "--resume"]
    random = np.random.default_rng(4)
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not list_snapshots(str(tmp_path / "killed")):
            assert killed.poll() is None
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.2))
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    capfd.readouterr()
    assert main(command[3:]) == 0
    ended = capfd.readouterr()
    assert json.loads(ended.out.splitlines()[-1])["metrics"] == expected.metrics
    assert "resumed from" in ended.err
    assert snapshot_contents(tmp_path / "killed") == snapshot_contents(tmp_path / "whole")


def test_a_folder_in_memory_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    chosen = config(tmp_path).model_dump(mode="json", exclude_none=True)
    path.write_text(json.dumps(chosen))
    assert main(["train", str(path), "snapshots.url=memory://runs", "training.steps=3"]) == 2
    assert "is in the memory of this command" in capsys.readouterr().err
