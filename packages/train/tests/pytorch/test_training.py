"""`sparring train` with torch: its input, its messages and its results.

The file is long because all tests change the same configuration and data.
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed; see nox -s tests")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')
import torch

import sparring
import sparring_torch
from sparring import StepContainer, list_snapshots, make_plugin_manager
from sparring.collective.local import LocalCollective
from sparring.errors import (
    CapacityError,
    ConfigError,
    DataError,
    InvalidArgumentError,
    NonFiniteGradientError,
    PluginError,
    StorageIOError,
)
from sparring.runtime import pool as execution
from sparring.snapshot.retention import latest_snapshot
from sparring_cli.application import main
from sparring_testing.fixtures.runs import write_ratings
from sparring_train.config.run_type import run_type
from sparring_train.config.sections.data import SyntheticCriteoData
from sparring_train.data.planted_model import PlantedModel
from sparring_train.pytorch import trainer
from sparring_train.pytorch.column_task import ColumnTask
from sparring_train.pytorch.trainer import native_optimizer, train
from sparring_train.report.run_data import read_report
from sparring_train.report.step_times import PARTS
from sparring_train.run.ranks import Ranks
from sparring_train.run.result import SilentProgress, TrainResult

from ..data.criteo_files import click_section, write_synthetic


class Told(SilentProgress):
    """Records the reports."""

    def __init__(self) -> None:
        self.total_steps: int | None = -1
        self.losses: list[float] = []
        self.samples: list[int] = []
        self.metrics: dict[int, Mapping[str, float]] = {}

    def on_start(self, total_steps: int | None) -> None:
        self.total_steps = total_steps

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self.losses.append(loss)
        self.samples.append(samples)
        assert step == len(self.losses)

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        self.metrics[step] = metrics


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """600 ratings that biases of users and items can explain, with widely spread ids."""
    random = np.random.default_rng(5)
    users, items = random.integers(0, 20, 600), random.integers(0, 30, 600)
    scores = 3 + random.normal(size=20)[users] * 0.7 + random.normal(size=30)[items] * 0.7
    ratings = [np.clip(round(score * 2) / 2, 0.5, 5) for score in scores]
    return write_ratings(tmp_path / "ratings.csv", users * 10**12 - 7, items * 10**9, ratings)


def rating_config(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "threads": 1,
        "data": {
            "kind": "table",
            "path": str(path),
            "label": "rating",
            "categorical": ["user", "item"],
            "required": ["user", "item"],
            "split": {"exact_fraction": 0.1},
            "batch_size": 64,
        },
        "model": {"kind": "matrix_factorization", "dim": 4, "embedding_l2": 0.05},
        "storage": {"backend": "memory"},
        "optimizer": {"sparse": {"name": "adagrad", "lr": 0.2}},
        "training": {"epochs": 12},
    } | more


def test_a_run_writes_the_requested_trace(ratings: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    written = rating_config(ratings, training={"steps": 3}, report={"trace_path": str(path)})
    train(run_type().model_validate(written), make_plugin_manager(), SilentProgress())
    names = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
    for name in ("forward", "backward", "apply", "update"):
        assert names.count(name) == 3
    assert names.count("look up") == 2 * 3  # embeddings and biases


def test_an_export_of_a_run_has_separate_biases(ratings: Path, tmp_path: Path) -> None:
    url, out = str(tmp_path / "saved"), tmp_path / "out"
    run(rating_config(ratings, training={"steps": 3}, snapshots={"url": url}))
    (snapshot,) = list_snapshots(url)
    assert main(["export", snapshot, "--to", "npy", "--output", str(out)]) == 0
    for table in ("user", "item"):
        count = len(np.load(out / f"{table}.key.npy"))
        assert np.load(out / f"{table}.embedding.npy").shape == (count, 4)
        assert np.load(out / f"{table}.bias.npy").shape == (count,)


def test_a_run_writes_its_counters_and_ends_with_the_final_ones(
    ratings: Path, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    stack = {"tiers": [{"backend": "memory", "options": {"capacity": 8}}, {"backend": "memory"}]}
    written = rating_config(
        ratings,
        training={"epochs": 2},
        storage={"backend": "tiered", "options": stack},
        metrics={"path": str(path), "every_seconds": 1e-6},
    )
    result = run(written)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) > 2
    assert (lines[0]["steps"]["steps"], lines[-1]["steps"]["steps"]) == (0, result.steps)
    last = lines[-1]["tables"]
    assert {name: table["rows"] for name, table in last.items()} == dict(result.rows)
    assert [tier["hits"] for table in last.values() for tier in table["tiers"]] == [
        tier["hits"] for tiers in result.tiers.values() for tier in tiers
    ]


def test_metrics_that_cannot_be_written_are_rejected_before_training(
    ratings: Path, tmp_path: Path
) -> None:
    told = Told()
    with pytest.raises(StorageIOError, match=r"writing metrics to .* failed"):
        run(rating_config(ratings, metrics={"path": str(ratings / "metrics.jsonl")}), told)
    assert told.losses == []


def click_config(**more: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "threads": 1,
        "data": {
            "kind": "synthetic_criteo",
            "samples": 3000,
            "test_samples": 2000,
            "batch_size": 256,
            "max_ids": 500,
        },
        "model": {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [8], "top_mlp": [8]},
        "storage": {"backend": "memory"},
        "optimizer": {
            "sparse": {"name": "adagrad", "lr": 0.1},
            "dense": {"name": "adam", "lr": 0.01},
        },
        "training": {"epochs": 1},
    } | more


def run(config: dict[str, Any], told: Told | None = None) -> TrainResult:
    return train(run_type().model_validate(config), make_plugin_manager(), told or Told())


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_a_snapshot_predicts_like_the_trained_model(
    kind: str, ratings: Path, tmp_path: Path
) -> None:
    snapshots = {"url": str(tmp_path / "run")}
    is_rating = kind == "ratings"
    written = (
        rating_config(ratings, snapshots=snapshots, training={"epochs": 2})
        if is_rating
        else click_config(snapshots=snapshots)
    )
    result = run(written)
    snapshot = latest_snapshot(snapshots["url"])
    assert snapshot is not None
    with StepContainer() as container:
        config = run_type().model_validate(written)
        task = ColumnTask(config, make_plugin_manager(), container)
        for value in task.model.state_dict().values():
            value.zero_()
        state = container.load(snapshot.url).states["torch"]
        sparring_torch.restore_state(state, model=task.model)
        with torch.no_grad():
            found = task.source.evaluate(task.predict, Ranks(container.collective))
    assert found == result.metrics


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_pipelined_run_gives_the_same_bits(
    kind: str, micro_batches: int, ratings: Path, tmp_path: Path
) -> None:
    """The last batch of each epoch has fewer samples than micro-batches."""
    results, losses = [], []
    for is_pipelined in (False, True):
        trace_path = tmp_path / f"{is_pipelined}.json"
        training = {"epochs": 2, "micro_batches": micro_batches, "pipeline": is_pipelined}
        more = {
            "training": {**training, "evaluation_interval_steps": 3},
            "report": {"trace_path": str(trace_path)},
        }
        if kind == "ratings":
            config = rating_config(ratings, **more)
            config["data"]["batch_size"] = 77  # seven of them, and one sample
        else:
            config = click_config(**more)
            config["data"] |= {"samples": 514, "test_samples": 100}
        told = Told()
        results.append(run(config, told))
        losses.append(told.losses)
        names = {each["name"] for each in json.loads(trace_path.read_text())["traceEvents"]}
        assert ("prefetch" in names) is is_pipelined
    plain, pipelined = results
    assert losses[0] == losses[1]
    assert plain.metrics == pipelined.metrics
    assert plain.rows == pipelined.rows
    assert plain.steps == pipelined.steps == 2 * (8 if kind == "ratings" else 3)


def test_a_pipelined_run_ends_after_the_requested_steps(ratings: Path) -> None:
    found = run(rating_config(ratings, training={"steps": 5, "epochs": 3, "pipeline": True}))
    assert found.steps == 5


def test_ratings_are_learned_and_each_id_has_one_row(ratings: Path) -> None:
    told = Told()
    result = run(rating_config(ratings), told)
    assert result.metrics["rmse"] < 0.5  # 1.05 with only the mean, 0.14 from rounding.
    assert result.rows == {"user": 20, "item": 30}
    assert told.total_steps == result.steps == 12 * math.ceil(540 / 64)
    assert sum(told.samples) == 12 * 540
    assert told.losses[-1] < told.losses[0]
    assert told.metrics == {result.steps: result.metrics}


def test_gradients_that_are_not_admitted_are_reported_by_table(ratings: Path) -> None:
    tables = {
        "admission": {"kind": "frequency", "k": 3},
        "overrides": {"item": {"admission": "all"}},
    }
    result = run(rating_config(ratings, tables=tables))
    # Each of the 20 users occurs in more than two of the steps.
    assert result.rows == {"user": 20, "item": 30}
    assert result.not_admitted == {"user": 40}
    assert result.metrics["rmse"] < 0.5
    assert run(rating_config(ratings, training={"epochs": 1})).not_admitted == {}


def test_a_model_of_many_tables_takes_admission_from_the_configuration() -> None:
    everything = run(click_config())
    filtered = run(click_config(tables={"admission": {"kind": "bloom", "k": 3}}))
    assert filtered.not_admitted.keys() == filtered.rows.keys()
    assert all(filtered.rows[name] <= everything.rows[name] for name in everything.rows)
    assert sum(filtered.rows.values()) < sum(everything.rows.values()) * 0.8
    # Each id without a row was dropped once or twice, each id with one twice.
    for name, count in filtered.not_admitted.items():
        rows, all_ids = filtered.rows[name], everything.rows[name]
        assert rows + all_ids <= count <= 2 * all_ids


def test_the_same_seed_gives_the_same_result(ratings: Path) -> None:
    config = rating_config(ratings, training={"epochs": 2})
    one, other = run(config), run(config)
    assert one.metrics == other.metrics
    assert run(config | {"seed": 4}).metrics != one.metrics


@pytest.mark.parametrize(
    ("threads", "batch_size", "micro_batches", "expected"),
    [(0, 64, 1, 1), (0, 512, 1, 3), (0, 512, 4, 1), (2, 64, 1, 3)],
)
def test_torch_computes_small_batches_on_one_thread_unless_threads_is_given(
    threads: int,
    batch_size: int,
    micro_batches: int,
    expected: int,
    ratings: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = set()

    class Threads(SilentProgress):
        def on_step(self, step: int, loss: float, samples: int) -> None:
            found.add(torch.get_num_threads())

    monkeypatch.setattr(trainer, "num_threads", lambda: 3)
    config = rating_config(
        ratings, threads=threads, training={"steps": 1, "micro_batches": micro_batches}
    )
    config["data"]["batch_size"] = batch_size
    train(run_type().model_validate(config), make_plugin_manager(), Threads())
    assert found == {expected}


def test_a_training_restores_the_settings_of_torch(ratings: Path) -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    run(rating_config(ratings, training={"epochs": 1}))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert execution.num_threads() == 1


def test_micro_batches_change_nothing_but_rounding(ratings: Path) -> None:
    tables = {"dtype": "float64"}
    whole, parts = (
        run(
            rating_config(
                ratings, tables=tables, training={"epochs": 2, "micro_batches": micro_batches}
            )
        )
        for micro_batches in (1, 3)
    )
    assert whole.steps == parts.steps
    assert whole.metrics["rmse"] == pytest.approx(parts.metrics["rmse"], rel=1e-6)


def test_clicks_are_learned_and_the_best_is_known() -> None:
    told = Told()
    training = {"epochs": 2, "evaluation_interval_steps": 10}
    result = run(click_config(training=training), told)
    assert 0.65 < result.metrics["auc"] < result.extra["best_auc"]
    assert result.extra["best_log_loss"] < result.metrics["log_loss"]
    assert list(told.metrics) == [10, 20, 24]
    assert told.total_steps == result.steps == 24
    data = run_type().model_validate(click_config()).data
    assert isinstance(data, SyntheticCriteoData)
    planted = PlantedModel(
        seed=3, max_ids=500, skew=data.skew, missing_fraction=data.missing_fraction
    )
    train_ids = np.concatenate([chunk.ids for chunk in planted.chunks(3000, "train")])
    expected = [len(np.unique(column)) for column in train_ids.T]
    assert list(result.rows.values()) == expected
    assert list(result.rows)[:2] == ["cat_1", "cat_2"]


@pytest.mark.parametrize("has_test_files", [False, True])
def test_a_log_in_files_is_read(tmp_path: Path, has_test_files: bool) -> None:
    train_path, test_path = write_synthetic(tmp_path, PlantedModel(max_ids=50), 600, 200)
    data = click_section(train_path, batch_size=128)
    if has_test_files:
        data |= {"path": str(test_path.parent), "split": {"files": test_path.name}}
    told = Told()
    result = run(click_config(data=data), told)
    assert told.total_steps is None
    assert (sum(told.samples) == 600) == has_test_files
    assert 450 < sum(told.samples) <= 600
    assert set(result.metrics) == {"auc", "log_loss"}


def test_steps_end_a_training_early() -> None:
    told = Told()
    result = run(click_config(training={"epochs": 3, "steps": 5}), told)
    assert result.steps == told.total_steps == len(told.losses) == 5


@pytest.mark.usefixtures("without_figures")
def test_a_report_is_written_to_the_requested_path(
    ratings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    monkeypatch.setattr(LocalCollective, "within_host", "shm")
    path, told = tmp_path / "report.html", Told()
    result = run(rating_config(ratings, report={"path": str(path)}, training={"epochs": 1}), told)
    page = path.read_text()
    assert result.extra["report_path"] == str(path)
    assert "embedding_l2: 0.05" in page
    assert torch.__version__ in page
    found = read_report(path)
    assert found.metrics == result.metrics
    assert found.rows == result.rows
    assert found.versions["torch"] == torch.__version__
    assert found.versions["sparring"] == sparring.__version__
    assert found.backends == {
        "framework": "torch",
        "storage": "memory",
        "collective": "local, shm within a host",
    }
    assert found.config["model"]["embedding_l2"] == 0.05
    assert found.host is not None
    assert found.host.name == platform.node()
    assert (found.world_size, found.snapshot) == (1, None)
    assert found.peak_memory_bytes == result.peak_memory_bytes > 50 << 20
    assert found.series["samples"].values[-1] == sum(told.samples) > 0
    assert found.calibration == []
    seconds = {part: found.series[f"seconds/{part}"].values[-1] for part in (*PARTS, "total")}
    assert seconds["total"] == pytest.approx(sum(seconds[part] for part in PARTS))
    assert 0 < seconds["total"] < result.seconds + 60
    for part in ("data", "lookup", "dense", "update", "report", "evaluation"):
        assert seconds[part] > 0
    assert seconds["exchange"] == seconds["graph"] == 0
    for feature in ("user", "item"):
        of = [each for each in found.slices if each.feature == feature]
        visits = [each for each in of if each.name in ("new ids", "known ids")]
        squares = sum(each.num_samples * each.metrics["rmse"] ** 2 for each in visits)
        num_samples = sum(each.num_samples for each in visits)
        assert (squares / num_samples) ** 0.5 == pytest.approx(result.metrics["rmse"])
        later = sum(each.num_samples for each in of if each not in visits)
        assert later == sum(each.num_samples for each in visits if each.name == "known ids")
    age = datetime.now(timezone.utc) - datetime.fromisoformat(found.started)
    assert 0 <= age.total_seconds() < 600


@pytest.mark.usefixtures("without_figures")
def test_ids_are_counted_once_however_often_they_are_trained(ratings: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    path, found = tmp_path / "report.html", []
    for epochs in (1, 2):
        run(rating_config(ratings, report={"path": str(path)}, training={"epochs": epochs}))
        slices = read_report(path).slices
        found.append([(each.feature, each.name, each.num_samples) for each in slices])
    assert found[0] == found[1]


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("interval", [None, 4])
def test_slices_are_of_the_last_evaluation(tmp_path: Path, interval: int | None) -> None:
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    log, _ = write_synthetic(tmp_path, PlantedModel(max_ids=50), 400, 1)
    data = click_section(log, batch_size=60)
    path = tmp_path / "report.html"
    training = {"epochs": 1, "evaluation_interval_steps": interval}
    # The number of steps is unknown before the log has been read.
    result = run(click_config(data=data, training=training, report={"path": str(path)}))
    found = read_report(path)
    assert found.series["auc"].steps == sorted(set(found.series["auc"].steps))
    assert found.series["auc"].steps[-1] == result.steps
    assert len({each.feature for each in found.slices}) == 2
    assert sum(each.num_samples for each in found.calibration) == sum(
        each.num_samples
        for each in found.slices
        if each.feature == found.slices[0].feature and each.name in ("new ids", "known ids")
    )
    assert all(set(each.metrics) == {"auc", "log_loss"} for each in found.slices)


def test_an_invalid_gradient_ends_training_before_any_row_changes() -> None:
    sparse = {"name": "sgd", "lr": 1e38}
    config = click_config(optimizer={"sparse": sparse, "dense": {"name": "sgd", "lr": 1e38}})
    with pytest.raises(NonFiniteGradientError, match=r"contains? NaN or infinity"):
        run(config)


def test_invalid_gradients_can_be_skipped_and_are_counted() -> None:
    training = {"epochs": 1, "non_finite_gradients": "skip"}
    optimizer = {"sparse": {"name": "sgd", "lr": 0.1}, "dense": {"name": "sgd", "lr": 1e38}}
    config = click_config(training=training, optimizer=optimizer)
    result = run(config)
    assert result.steps == 12
    assert 0 < result.skipped["dense_steps_skipped_non_finite"] < 12
    assert result.skipped["rows_skipped_non_finite"] > 0
    # NaN predictions have no AUC, which is reported rather than guessed.
    assert math.isnan(result.metrics["auc"])


def test_a_run_ends_if_its_tables_outgrow_their_memory(ratings: Path) -> None:
    enough = rating_config(ratings, tables={"memory_bytes": "1 GiB"}, training={"steps": 3})
    assert run(enough).steps == 3
    told = Told()
    with pytest.raises(CapacityError, match=r"tables\.memory_bytes") as caught:
        run(rating_config(ratings, tables={"memory_bytes": 1000}), told)
    assert caught.value.details["budget_bytes"] == 1000
    assert len(told.losses) == 1  # it is checked before a step is written


def test_wrong_data_are_rejected_with_their_place(ratings: Path) -> None:
    ratings.write_text("user,item,rating\n1,2,3.5\n1,2,three\n")
    with pytest.raises(DataError) as caught:
        run(rating_config(ratings))
    assert caught.value.details["row"] == 3
    with pytest.raises(DataError):
        run(rating_config(ratings.with_name("missing.csv")))
    ratings.write_text("user,item,rating\n1,2,3.5\n")
    with pytest.raises(DataError, match="found no row for the test"):
        run(rating_config(ratings))


def test_wrong_optimizers_are_rejected_by_their_key(ratings: Path) -> None:
    def with_sparse(**choice: Any) -> dict[str, Any]:
        return rating_config(ratings, optimizer={"sparse": {"lr": 0.1} | choice})

    with pytest.raises(ConfigError, match=r"optimizer\.sparse\.name.*did you mean 'adagrad'"):
        run(with_sparse(name="adagard"))
    with pytest.raises(InvalidArgumentError, match="does not accept"):
        run(with_sparse(name="torch.optim:Adagrad", momentum=0.9))
    with pytest.raises(InvalidArgumentError, match="'adagrad' has no hyper-parameter 'momentum'"):
        run(with_sparse(name="adagrad", momentum=0.9))
    with pytest.raises(InvalidArgumentError, match="no table 'usr'"):
        run(with_sparse(name="adagrad", tables={"usr": {"lr": 0.2}}))
    with pytest.raises(ConfigError, match=r"optimizer\.dense: Adam does not accept"):
        run(click_config(optimizer={"dense": {"name": "adam", "lr": 0.1, "beta": 1}}))


def test_an_unknown_backend_is_rejected(ratings: Path) -> None:
    with pytest.raises(PluginError, match="memory"):
        run(rating_config(ratings, storage={"backend": "memry"}))


def test_optimizers_are_found_by_their_name_and_by_their_class() -> None:
    assert native_optimizer("AdamW", "x") is torch.optim.AdamW
    assert native_optimizer("torch.optim:Adagrad", "x") is torch.optim.Adagrad
    for name, message in {
        "adm": "torch.optim has no optimizer 'adm'; did you mean 'adam'",
        "torch.optim:Nothing": "torch.optim has no 'Nothing'",
        "torch.nn:Linear": "expected a class derived from torch.optim.optimizer:Optimizer",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(message)):
            native_optimizer(name, "x")
