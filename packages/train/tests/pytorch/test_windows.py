"""A run on a stream measures each batch before it is trained, over windows of event time."""

from __future__ import annotations

import json
import sys
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="writes Parquet")
torch = pytest.importorskip("torch", reason='pip install "sparring[torch]"')
pytest.importorskip("sklearn", reason="compares with scikit-learn")

from sklearn.metrics import log_loss, roc_auc_score

from sparring import make_plugin_manager
from sparring.collective.local import LocalGroup
from sparring.errors import ConfigError
from sparring_train.columns import Column, ColumnBatch, Cut, CutRead
from sparring_train.live import evaluation
from sparring_train.live.evaluation import LiveEvaluation
from sparring_train.live.windows import WindowResult
from sparring_train.loop.model import StepResult
from sparring_train.metrics_files.stream_families import stream_families
from sparring_train.pytorch.column_task import ColumnTask
from sparring_train.pytorch.trainer import train
from sparring_train.run.ranks import Ranks

from ..config.config_runs import Runs
from ..data.stream.stream_files import WritableFolder
from .stream_runs import CONFIG, NUM_EVENTS, Events, Quiet

BEGIN = 1_700_000_000
TIMED = ("data.event_time=at", "metrics.window_seconds=100", "metrics.slices={item: [3, 5]}")

AGED = "metrics.row_age={feature: item, seconds: [64, 150]}"
AGES = ("new", "up to 64 s", "up to 150 s", "older")


class Measured:
    """Collects the results of all runs, and all outputs and labels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.results: list[WindowResult] = []
        self.steps: list[Any] = []
        original = LiveEvaluation.after_step

        def after_step(live: LiveEvaluation, trained: Any, step: int) -> None:
            if self.results.append not in live.on_window:
                live.on_window.append(self.results.append)
            self.steps.append((trained.outputs, trained.batch))
            original(live, trained, step)

        monkeypatch.setattr(LiveEvaluation, "after_step", after_step)

    def taken(self) -> list[WindowResult]:
        found, self.results[:] = list(self.results), []
        self.steps.clear()
        return found


class Sum(torch.nn.Module):
    """A model without layers."""

    def __init__(self, embeddings: Any, num_numbers: int) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, numbers: Any, features: Any) -> Any:
        return self.embeddings(features).values().sum(1)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    return Measured(monkeypatch)


@pytest.fixture
def events(tmp_path: Path) -> Events:
    """Events with one second between them, without an end."""
    found = Events(tmp_path)
    found.train = found.train.append_column("at", [BEGIN + np.arange(NUM_EVENTS)])
    return found


def test_each_batch_is_measured_before_it_is_trained(
    events: Events, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = events.write_folder()
    predictions: list[Any] = []
    original = ColumnTask.training_inputs

    def training_inputs(task: ColumnTask, batch: Any) -> Any:
        with torch.no_grad():
            predictions.append((task.predict(batch), batch.labels))
        return original(task, batch)

    monkeypatch.setattr(ColumnTask, "training_inputs", training_inputs)
    result = events.run(url, "run", *TIMED)
    assert result.steps == len(predictions) == 7
    for (probability, labels), (outputs, batch) in zip(predictions, measured.steps, strict=True):
        np.testing.assert_allclose(1 / (1 + np.exp(-outputs)), probability, rtol=1e-5)
        np.testing.assert_array_equal(batch.labels, labels)
    probability, labels = (np.concatenate(each) for each in zip(*predictions, strict=True))
    assert [each.num_events for each in measured.results] == [100, 100, 100]
    for at, each in enumerate(measured.results):
        part = slice(at * 100, at * 100 + 100)
        assert (each.begin, each.end) == (BEGIN + at * 100, BEGIN + at * 100 + 100)
        assert each.metrics["log_loss"] == pytest.approx(log_loss(labels[part], probability[part]))
        expected = roc_auc_score(labels[part], probability[part])
        assert each.metrics["auc"] == pytest.approx(expected, abs=0.01)
        items = events.train["item"].to_numpy()[part]
        of_items = {part.value: part.num_events for part in each.slices}
        counts = {str(item): int((items == item).sum()) for item in (3, 5)}
        assert of_items == {item: count for item, count in counts.items() if count}


@pytest.mark.parametrize(
    "override",
    ["training.pipeline=true", "training.micro_batches=3"],
)
def test_all_ways_to_make_steps_measure_the_same(
    override: str, events: Events, measured: Measured
) -> None:
    url = events.write_folder()
    events.run(url, "one", *TIMED, AGED)
    expected = measured.taken()
    events.run(url, "other", *TIMED, AGED, override)
    for one, other in zip(expected, measured.results, strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-4)
        assert (other.begin, other.num_events, other.step) == (one.begin, one.num_events, one.step)
        assert slices_of(other) == slices_of(one)


def slices_of(result: WindowResult) -> dict[tuple[str, str], int]:
    return {(each.dimension, each.value): each.num_events for each in result.slices}


def test_windows_are_measured_by_the_age_of_rows(events: Events, measured: Measured) -> None:
    events.run(events.write_folder(), "run", *TIMED, AGED)
    created: dict[int, float] = {}
    expected: list[Counter[str]] = [Counter() for _ in range(4)]
    items = events.train["item"].to_pylist()
    for begin in range(0, NUM_EVENTS, 64):
        step = range(begin, min(begin + 64, NUM_EVENTS))
        for at in step:
            age = at - created.get(items[at], at + 1)
            place = 0 if age < 0 else 1 + sum(age > bound for bound in (64, 150))
            expected[at // 100][AGES[place]] += 1
        created = {items[at]: step[-1] for at in step} | created
    for result, counts in zip(measured.results, expected, strict=False):
        found = slices_of(result)
        assert {age: found.get(("age of item", age), 0) for age in AGES} == {
            age: counts[age] for age in AGES
        }
    assert all(sum(each[age] for each in expected[:3]) for age in AGES)


def test_a_resumed_run_and_a_replay_have_the_same_windows(
    events: Events, measured: Measured
) -> None:
    url = events.write_folder()
    events.run(url, "whole", *TIMED)
    expected = measured.taken()
    assert len(expected) == 3
    events.run(url, "parts", *TIMED, "training.steps=3")
    events.run(url, "parts", *TIMED, "snapshots.resume=true")
    assert measured.taken() == expected
    events.run(url, "again", *TIMED, f"data.cuts_from={events.folder / 'whole'}")
    assert measured.taken() == expected
    config = events.config(url, "parts", *TIMED, "snapshots.resume=true", "metrics.slices={}")
    quiet = Quiet()
    train(config, make_plugin_manager(), quiet)
    assert "other metrics.window_seconds, metrics.slices or" in "".join(quiet.messages)


def test_two_ranks_have_the_windows_of_one(
    events: Events, measured: Measured, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = WritableFolder(events.folder / "events", ["0", "1"], is_numbered=True)
    for number, name in enumerate(stream.partitions):
        stream.append_table(name, events.train.take(np.arange(number, NUM_EVENTS, 2)))
    # Ranks that are threads share torch's random numbers, so this model has no layers.
    module: Any = types.ModuleType("summing")
    module.Sum = Sum
    monkeypatch.setitem(sys.modules, "summing", module)
    own = (*TIMED, AGED, "model={kind: 'summing:Sum', embedding_dim: 3}")
    url = str(stream.path)
    two, _ = runs.ranks(*events.words(url, "two", *own), text=CONFIG)
    found = measured.taken()
    replay = f"data.cuts_from={events.folder / 'two'}"
    runs._run(CONFIG, (*events.words(url, "one", *own), replay))
    expected = measured.taken()
    assert len(expected) == 3
    for other in expected:
        one, same = (each for each in found if each.begin == other.begin)
        assert one == same
        assert one.metrics == pytest.approx(other.metrics, rel=1e-5)
        assert (one.num_events, one.step) == (other.num_events, other.step)
        assert slices_of(one) == slices_of(other)
    assert sum("events before" in each for each in two.messages) == 2


@pytest.mark.usefixtures("without_figures")
def test_metrics_and_the_report_contain_windows_and_lags(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="draws the report")
    clock = types.SimpleNamespace(time=lambda: BEGIN + 430.0, monotonic=time.monotonic)
    monkeypatch.setattr(evaluation, "time", clock)
    lines, html = events.folder / "metrics.jsonl", events.folder / "run.html"
    own = (*TIMED, f"report.path={html}", f"metrics.path={lines}")
    events.run(events.write_folder(), "run", *own)
    stream = json.loads(lines.read_text().splitlines()[-1])["stream"]
    assert stream["event_time_seconds"] == BEGIN + 399
    assert stream["event_lag_seconds"]["counts"]["60"] == 30
    assert stream["event_lag_seconds"]["sum"] == sum(range(31, 431))
    # The events were read at the time of the test.
    assert stream["ingest_lag_seconds"]["counts"]["inf"] == NUM_EVENTS
    assert sum(stream["step_lag_seconds"]["counts"].values()) == 7
    assert stream["windows"] == 3
    assert (stream["window"]["end"], stream["window"]["num_events"]) == (BEGIN + 400, 100)
    families = {each.name: each for each in stream_families(stream, {"rank": "0"})}
    assert families["sparring_stream_windows_total"].samples[0].value == 3
    assert families["sparring_stream_event_lag_seconds"].samples[0].counts[60.0] == 30
    [window] = families["sparring_stream_window_log_loss"].samples
    assert window.value == stream["window"]["log_loss"]
    labels = [each.labels for each in families["sparring_stream_slice_log_loss"].samples]
    assert {"rank": "0", "dimension": "item", "value": "5"} in labels
    text = html.read_text()
    assert "AUC over event time" in text
    assert "item=3" in text


def test_models_without_a_prediction_per_event_and_runs_without_windows_are_not_measured(
    events: Events, measured: Measured
) -> None:
    url = events.write_folder()
    events.run(url, "run", "data.event_time=at", "metrics.window_seconds=null")
    ranking = (
        "data.label=null",
        "data.numeric=[]",
        "data.required=[user, item]",
        "data.test_path=null",
    )
    towers = "model={kind: two_towers, embedding_dim: 4}"
    for key, value in (("slices", "{item: [3]}"), ("row_age", "{feature: item}")):
        for words, found in (
            ((*ranking, towers), "model.kind: two_towers, which does not predict labels"),
            (("metrics.window_seconds=null",), "metrics.window_seconds: null"),
        ):
            chosen = f"metrics.{key}={value}"
            with pytest.raises(ConfigError, match=rf"metrics\.{key}: has no effect.*found {found}"):
                events.config(url, "no windows", "data.event_time=at", *words, chosen)
    events.run(url, "towers", *TIMED, *ranking, towers, "metrics.slices={}")
    assert len(measured.steps) == 14
    assert all(outputs is None for outputs, _ in measured.steps)
    pairs = ("data.numeric=[]", "data.required=[user, item]")
    ratings = events.config(
        url, "ratings", *TIMED, *pairs, "model={kind: matrix_factorization, dim: 3}"
    )
    quiet = Quiet()
    train(ratings, make_plugin_manager(), quiet)
    assert "".join(quiet.messages).count("matrix_factorization defines its own loss") == 1
    assert measured.results == []


def test_joined_examples_close_windows_when_their_labels_are_complete(
    events: Events, measured: Measured
) -> None:
    join = "data.join={key: [item], actions: {clicks: {url: clicks}}, window_seconds: 50}"
    ranks = Ranks(LocalGroup(1).join(0))
    live = LiveEvaluation(events.config("events", "run", *TIMED, join), ranks, print)
    ones = np.ones(2, np.float32)
    for step, (time_of_it, watermark) in enumerate([(10, 60), (90, 149), (95, 150), (120, 251)], 1):
        # The newest event that was read is newer than all examples.
        reads = (CutRead((), BEGIN + watermark, 1),)
        batch = ColumnBatch(
            {"item": Column(np.array([3, 4]))},
            np.empty((2, 0), np.float32),
            ones,
            # The second one corrects an example that was measured before.
            event_times=np.array([BEGIN + time_of_it, np.nan]),
            cut=Cut((), {}, BEGIN + watermark + 5.0, reads),
        )
        live.after_step(StepResult(batch, 0.0, 1, False, ones), step)
    assert [(each.step, each.num_events) for each in measured.results] == [(3, 3), (4, 1)]
