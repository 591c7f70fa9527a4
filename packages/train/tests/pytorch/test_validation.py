"""Validation: the best step is kept, training stops early, and a resumed run decides equally."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; see nox -s tests")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from sparring import list_snapshots, make_plugin_manager, open_snapshot
from sparring.errors import DataError
from sparring_testing.fixtures.runs import snapshot_rows, write_clicks
from sparring_train.config.run import RunConfig
from sparring_train.config.run_type import run_type
from sparring_train.pytorch.trainer import train
from sparring_train.run.ranks import Ranks
from sparring_train.run.result import SilentProgress, TrainResult
from sparring_train.run.saved_run import open_run

from ..config.config_runs import Runs

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
        "validation": {"exact_fraction": 0.5},
    },
    "model": {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [8], "top_mlp": [8]},
    "storage": {"backend": "memory"},
    "optimizer": {"sparse": {"name": "adagrad", "lr": 0.5}},
}
"""10 steps an epoch; it learns its samples by heart in a few epochs. `clicks` adds the path."""


@pytest.fixture(scope="module", autouse=True)
def clicks(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    CLICKS["data"]["path"] = str(write_clicks(path, 1000))


class Told(SilentProgress):
    """Records the reports of a run; ends it by an error after a step."""

    def __init__(self, interrupt_at: int = -1) -> None:
        self.interrupt_at = interrupt_at
        self.validated: dict[int, Mapping[str, float]] = {}
        self.tested: list[int] = []
        self.messages: list[str] = []

    def on_step(self, step: int, loss: float, samples: int) -> None:
        if step == self.interrupt_at:
            raise KeyboardInterrupt

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        if part == "test":
            self.tested.append(step)
        else:
            self.validated[step] = metrics

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def config(training: dict[str, Any], **sections: Any) -> RunConfig:
    return run_type().model_validate(CLICKS | {"training": training} | sections)


def run(chosen: RunConfig, interrupt_at: int = -1) -> tuple[TrainResult | None, Told]:
    told = Told(interrupt_at)
    try:
        return train(chosen, make_plugin_manager(), told), told
    except KeyboardInterrupt:
        return None, told


@pytest.mark.parametrize("watch", ["auc", "log_loss"])
def test_training_stops_and_ends_with_the_best_step(watch: str, tmp_path: Path) -> None:
    training = {"epochs": 30, "patience": 2, "watch": watch}
    result, told = run(config(training, snapshots={"url": str(tmp_path / "run")}))
    assert result is not None
    values = {step: metrics[watch] for step, metrics in told.validated.items()}
    best = (max if watch == "auc" else min)(values, key=lambda step: values[step])
    assert list(values) == list(range(10, result.steps + 1, 10))
    assert result.steps == best + 20 < 300
    assert result.best_step == best
    assert result.validation == told.validated[best]
    # There is one test, of the best step: a run that ends there has the same metrics.
    assert told.tested == [best]
    alone, _ = run(config({"epochs": best // 10, "keep_best": False}))
    assert alone is not None
    assert result.metrics == pytest.approx(alone.metrics, rel=1e-6)
    urls = list_snapshots(tmp_path / "run")
    assert [open_snapshot(each).step for each in urls][-1] == result.steps
    at_best = next(each for each in urls if open_snapshot(each).step == best)
    assert snapshot_rows(open_snapshot(urls[-1])) == snapshot_rows(open_snapshot(at_best))
    # The saved model is from the best step, too.
    with open_run(open_snapshot(urls[-1]), (), make_plugin_manager()) as (_, model):
        ranks = Ranks(model.source.container.collective)
        found = model.source.evaluate(model.predict, ranks, part="validation")
    assert found == pytest.approx(result.validation, rel=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_saved_models_compute_on_the_configured_threads(tmp_path: Path, threads: int) -> None:
    run(config({"epochs": 1}, snapshots={"url": str(tmp_path / "run")}))
    before = torch.get_num_threads()
    newest = open_snapshot(list_snapshots(tmp_path / "run")[-1])
    with open_run(newest, [f"threads={threads}"], make_plugin_manager()):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == before


def test_the_best_step_needs_no_folder_of_snapshots(tmp_path: Path) -> None:
    training = {"epochs": 30, "patience": 2}
    with_folder, _ = run(config(training, snapshots={"url": str(tmp_path / "run")}))
    without, told = run(config(training))
    assert with_folder is not None
    assert without is not None
    assert without.metrics == with_folder.metrics
    assert without.best_step == with_folder.best_step
    assert any("had the best validation auc" in each for each in told.messages)


def test_without_keep_best_the_last_step_is_tested() -> None:
    # Its validation rows are in addition to the rows for training.
    data = {
        "kind": "synthetic_criteo", "samples": 400, "test_samples": 300, "batch_size": 40,
        "max_ids": 60,
    }  # fmt: skip
    validated = data | {"validation_samples": 300}
    last, told = run(config({"epochs": 5, "keep_best": False}, data=validated))
    whole, _ = run(config({"epochs": 5, "keep_best": True}, data=validated))
    plain, _ = run(config({"epochs": 5}, data=data))
    assert last is not None
    assert whole is not None
    assert plain is not None
    assert list(told.validated) == [10, 20, 30, 40, 50]
    assert last.best_step == whole.best_step != 50
    # Evaluation changes nothing.
    assert last.metrics == plain.metrics != whole.metrics


@pytest.mark.parametrize("pipeline", [False, True])
def test_evaluations_every_n_steps(pipeline: bool) -> None:
    training = {"epochs": 8, "evaluation_interval_steps": 7, "patience": 3, "pipeline": pipeline}
    result, told = run(config(training))
    assert result is not None
    assert list(told.validated) == list(range(7, result.steps + 1, 7))
    assert result.best_step is not None
    assert result.steps == result.best_step + 21
    if pipeline:
        plain, _ = run(config(training | {"pipeline": False}))
        assert plain is not None
        assert (plain.metrics, plain.steps) == (result.metrics, result.steps)


def test_the_last_step_is_validated_and_minimal_improvements_count() -> None:
    _, told = run(config({"epochs": 8, "steps": 17, "evaluation_interval_steps": 10}))
    assert list(told.validated) == [10, 17]
    result, _ = run(config({"epochs": 8, "patience": 2, "min_improvement": 0.5}))
    assert result is not None
    assert (result.best_step, result.steps) == (10, 30)


@pytest.mark.parametrize("interrupt_at", [37, pytest.param(12, marks=pytest.mark.long)])
def test_a_resumed_run_makes_the_same_decisions(interrupt_at: int, tmp_path: Path) -> None:
    training = {"epochs": 30, "patience": 2}
    whole, whole_told = run(config(training, snapshots={"url": str(tmp_path / "whole")}))
    saving = {"url": str(tmp_path / "cut"), "every_steps": 8, "keep": 2}
    _, cut = run(config(training, snapshots=saving), interrupt_at)
    resumed, told = run(config(training, snapshots=saving | {"resume": True}))
    assert whole is not None
    assert resumed is not None
    assert resumed.resumed_steps
    assert (resumed.steps, resumed.best_step) == (whole.steps, whole.best_step)
    assert resumed.metrics == whole.metrics
    assert resumed.validation == whole.validation
    assert {**cut.validated, **told.validated} == whole_told.validated
    ends = [list_snapshots(tmp_path / name)[-1] for name in ("whole", "cut")]
    assert snapshot_rows(open_snapshot(ends[0])) == snapshot_rows(open_snapshot(ends[1]))
    # A finished run stays finished.
    again, told = run(config(training, snapshots=saving | {"resume": True}))
    assert again is not None
    assert (again.steps, again.metrics) == (whole.steps, whole.metrics)
    assert not told.validated
    # More patience continues from the best step.
    more = config(training | {"patience": 3}, snapshots=saving | {"resume": True})
    longer, told = run(more)
    assert longer is not None
    assert longer.steps > whole.steps
    assert min(told.validated) == whole.steps + 10


def test_a_missing_best_snapshot_is_reported(tmp_path: Path) -> None:
    training = {"epochs": 30, "patience": 2}
    saving = {"url": str(tmp_path), "every_steps": 4, "keep": 2}
    whole, _ = run(config(training))
    assert whole is not None
    assert whole.best_step is not None
    run(config(training, snapshots=saving), whole.best_step + 15)
    kept = [open_snapshot(each).step for each in list_snapshots(tmp_path)]
    # It is kept, although it is not one of the newest two.
    assert whole.best_step == kept[0] < kept[1] - 5
    shutil.rmtree(list_snapshots(tmp_path)[0])
    result, told = run(config(training, snapshots=saving | {"resume": True}))
    assert result is not None
    assert any("cannot be loaded" in each for each in told.messages)


def test_ranks_make_the_decisions_of_one_process(runs: Runs) -> None:
    # Ranks are threads. See `test_training_on_ranks` for processes, and for runs without snapshots.
    given = (
        "training.epochs=30", "training.patience=2", "data.validation={exact_fraction: 0.3}",
        "tables.dtype=float64", "optimizer.sparse.lr=0.3", "data.draw=position",
    )  # fmt: skip
    alone = runs.ratings(*given).end
    assert alone.best_step is not None
    assert alone.best_step < alone.steps
    for each in runs.ranks(*given, "snapshots.url=ranks"):
        assert (each.end.best_step, each.end.steps) == (alone.best_step, alone.steps)
        assert each.end.metrics == pytest.approx(alone.metrics, rel=1e-6)
        assert each.end.validation == pytest.approx(alone.validation, rel=1e-6)


def test_validation_rows_that_determine_no_metric_are_rejected(tmp_path: Path) -> None:
    rows = [f"{n % 2},u{n % 5},train" for n in range(40)]
    rows += [f"1,u{n},validation" for n in range(4)] + [f"{n % 2},u{n},test" for n in range(4)]
    (tmp_path / "rows.csv").write_text("\n".join(["clicked,user,part", *rows]) + "\n")
    data = {
        "kind": "table",
        "path": str(tmp_path / "rows.csv"),
        "label": "clicked",
        "categorical": ["user"],
        "batch_size": 16,
        "split": {"column": "part"},
        "validation": {"column": "part"},
    }
    with pytest.raises(
        DataError, match=r"all 4 validation rows have the label 1; choose other validation rows"
    ):
        run(config({}, data=data))
