"""Effects of the keys of `data` of kind `stream`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sparring import hash_strings, list_snapshots, open_snapshot
from sparring.errors import ConfigError, DataError
from sparring_train import find_strings
from sparring_train.data.stream.cut_log import read_cuts
from sparring_train.data.stream.quarantine import Quarantine, write_quarantine

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

from .config_runs import Ran, Runs, shows

_STREAM = """
seed: 3
threads: 1
data:
  kind: stream
  url: events
  label: clicked
  categorical: [user, item, tags]
  types: {user: string}
  lists: [tags]
  numeric: [price]
  batch_size: 16
  max_milliseconds: 20000
  stop_at_end: true
  test_path: shown.parquet
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [3], top_mlp: [3]}
storage: {backend: memory}
"""
"""48 events in two files, of 10 users and 12 items; 16 rows for the test."""

_FACTORS = "model={kind: matrix_factorization, dim: 2}"


def _events(count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    return pyarrow.table(
        {
            "user": [f"{n}" for n in random.integers(0, 10, count)],
            "item": random.integers(0, 12, count),
            "tags": [random.integers(0, 9, n).tolist() for n in random.integers(0, 3, count)],
            "price": random.normal(0, 3, count),
            "clicked": random.integers(0, 2, count),
            "answer": random.choice(["yes", "no"], count),
            "w": random.gamma(2, 1, count),
            "at": 1_700_000_000_000 + 1000 * np.arange(count),
            "later": 1000 * (time.time() + 3600 + np.arange(count)),
        }
    )


def _ran(runs: Runs, *overrides: str) -> Ran:
    if not Path("events").exists():
        Path("events").mkdir()
        events = _events(48, 7)
        parquet.write_table(events.slice(0, 30), "events/0.parquet")
        parquet.write_table(events.slice(30), "events/30.parquet")
        parquet.write_table(_events(16, 8), "shown.parquet")
        rows = events.to_pylist()
        Path("events.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        rows[3]["user"], rows[4]["price"] = None, "cheap"
        Path("bad.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return runs._run(_STREAM, overrides)[0]


_LINES = ("data.url=lines://events.jsonl", "data.format=json")
_BAD = ("data.url=lines://bad.jsonl", "data.format=json", "data.bad_rows=skip")


@shows("data:stream.kind", "data:stream.url", "data:stream.batch_size")
def test_effects_of_stream_kind_url_and_batch_size(runs: Runs) -> None:
    assert _ran(runs).samples == [16, 16, 16]
    assert _ran(runs, "data.batch_size=40").samples == [40, 8]
    assert _ran(runs, *_LINES).losses == _ran(runs).losses


@shows("data:stream.format", "data:stream.options")
def test_effects_of_stream_format_and_options(runs: Runs) -> None:
    with pytest.raises(DataError, match="offset 0"):
        _ran(runs, _LINES[0])
    assert _ran(runs, *_LINES, "data.options={skip: 40}").samples == [8]


@shows("data:stream.start", "data:stream.stop_at_end", "data:stream.max_milliseconds")
def test_effects_of_stream_start_stop_at_end_and_max_milliseconds(runs: Runs) -> None:
    with pytest.raises(DataError, match="found no sample to train on"):
        _ran(runs, "data.start=latest")
    # It does not end before the limit of steps, and the last step does not wait for 16 events.
    limits = ("data.stop_at_end=false", "data.max_milliseconds=300", "data.batch_size=47")
    assert _ran(runs, *limits, "training.steps=2").samples == [47, 1]


@shows("data:stream.test_path")
def test_effect_of_stream_test_path(runs: Runs) -> None:
    assert _ran(runs).end.metrics.keys() == {"auc", "log_loss"}
    without = _ran(runs, "data.test_path=null", "report.path=stream.html")
    assert (without.end.metrics, without.evaluate_model) == ({}, [])
    assert without.losses == _ran(runs).losses


@shows("data:stream.bad_rows", "data:stream.dead_letters", "data:stream.required")
def test_effects_of_stream_bad_rows_dead_letters_and_required(runs: Runs) -> None:
    with pytest.raises(DataError, match="offset 4"):
        _ran(runs, *_BAD, "data.bad_rows=refuse")
    skipped = _ran(runs, *_BAD, "data.dead_letters=letters")
    assert skipped.end.skipped == {"rows_skipped": 1}
    assert len(Path("letters/rank-0.jsonl").read_text().splitlines()) == 1
    required = _ran(runs, *_BAD, "data.required=[user, item]")
    assert required.end.skipped == {"rows_skipped": 2}


@shows("data:stream.event_time", "data:stream.event_time_unit", "data:stream.max_future_seconds")
def test_effects_of_stream_event_time_event_time_unit_and_max_future_seconds(runs: Runs) -> None:
    times = ("data.event_time=at", "data.event_time_unit=milliseconds", "data.batch_size=20")
    _ran(runs, *times, "snapshots.url=timed")
    found = [cut.event_time for cut in read_cuts("timed")]
    assert found == [1_700_000_019, 1_700_000_039, 1_700_000_047]
    newest = open_snapshot(list_snapshots("timed")[-1])
    assert newest.state("position").values["event_time"] == 1_700_000_047
    with pytest.raises(DataError, match=r"in the unit of data.event_time_unit"):
        _ran(runs, *times[:1])
    later = (*times[1:], "data.event_time=later")
    with pytest.raises(DataError, match=r"at most 60 s later .* check data.event_time_unit"):
        _ran(runs, *later)
    assert _ran(runs, *later, "data.max_future_seconds=4000").samples == [20, 20, 8]
    with pytest.raises(ConfigError, match="is also a column of ids or the label"):
        _ran(runs, "data.event_time=item")


@shows("data:stream.dictionary")
def test_effect_of_stream_dictionary(runs: Runs) -> None:
    with pytest.raises(DataError, match=r"snapshots.url is null"):
        _ran(runs, "data.dictionary=true")
    _ran(runs, "data.dictionary=true", "snapshots.url=strings_of_events")
    users = [f"{n}" for n in range(10)]
    assert find_strings("strings_of_events", "user", hash_strings(users)) == users
    _ran(runs, "data.cuts_from=strings_of_events", "data.dictionary=true")


@shows("data:stream.cuts_from")
def test_effect_of_stream_cuts_from(runs: Runs) -> None:
    own = _ran(runs, "data.batch_size=20", "snapshots.url=recorded")
    assert _ran(runs, "data.cuts_from=recorded").samples == own.samples == [20, 20, 8]
    assert len(read_cuts("recorded")) == 3


@shows("data:stream.quarantined")
def test_effect_of_stream_quarantined(runs: Runs) -> None:
    _ran(runs, "data.batch_size=20", "snapshots.url=some-dropped")
    write_quarantine("some-dropped", Quarantine(0, 2, "bad", 0.0, 0.0, ()))
    dropped = _ran(runs, "data.cuts_from=some-dropped", "data.quarantined=true")
    assert dropped.samples == [20, 20]


@shows("data:stream.label", "data:stream.numeric")
def test_effects_of_stream_label_and_numeric(runs: Runs) -> None:
    pairs = ("data.categorical=[user, item]", "data.lists=[]", "data.required=[user, item]")
    prices = (*pairs, "data.label=price", "data.numeric=[]", _FACTORS)
    assert _ran(runs, *prices).end.metrics.keys() == {"rmse"}


@shows("data:stream.categorical", "data:stream.share_tables", "data:stream.types")
def test_effects_of_stream_categorical_share_tables_and_types(runs: Runs) -> None:
    assert set(_ran(runs).rows) == {"user", "item", "tags"}
    some = ("data.categorical=[user, item]", "data.lists=[]")
    assert set(_ran(runs, *some, "data.share_tables={user: item}").rows) == {"item"}
    with pytest.raises(DataError, match=r"'user': found strings, expected whole numbers"):
        _ran(runs, "data.types={}")


@shows("data:stream.weight", "data:stream.log1p", "data:stream.minimum", "data:stream.missing_ids")
def test_effects_of_stream_weight_log1p_minimum_and_missing_ids(runs: Runs) -> None:
    without = _ran(runs).losses
    for given in ("weight=w", "log1p=[price]", "minimum={price: 0}"):
        assert _ran(runs, f"data.{given}").losses != without, given
    skipping = _ran(runs, *_BAD)
    missing = _ran(runs, *_BAD, "data.missing_ids={user: -1}")
    assert missing.rows["user"] == skipping.rows["user"] + 1


@shows("data:stream.lists", "data:stream.label_values")
def test_effects_of_stream_lists_and_label_values(runs: Runs) -> None:
    with pytest.raises(DataError, match=r"column 'tags': found list.*; add it to data.lists"):
        _ran(runs, "data.lists=[]")
    values = ("data.label=answer", "data.label_values={yes: 1, no: 0}")
    assert _ran(runs, *values).losses != _ran(runs).losses
    assert _ran(runs, *values, *_LINES).losses == _ran(runs, *values).losses


@shows("metrics.row_age.feature", "metrics.row_age.seconds")
def test_effects_of_row_age_feature_and_seconds(runs: Runs) -> None:
    times = ("data.event_time=at", "data.event_time_unit=milliseconds")
    aged = ("metrics.row_age={feature: item, seconds: [5, 10]}", "metrics.path=aged.jsonl")
    _ran(runs, *times, *aged, "metrics.window_seconds=48")
    window = json.loads(Path("aged.jsonl").read_text().splitlines()[-1])["stream"]["window"]
    assert {each["dimension"] for each in window["slices"]} == {"age of item"}
    values = {each["value"] for each in window["slices"]}
    assert {"new", "older"} < values <= {"new", "up to 5 s", "up to 10 s", "older"}
    for age, message in (
        ("{feature: tags}", r"tags.*expected user, item"),
        ("{feature: item, seconds: [10, 5]}", "found 10, 5, expected 5, 10"),
    ):
        with pytest.raises(ConfigError, match=message):
            _ran(runs, f"metrics.row_age={age}")
    pairs = ("data.categorical=[user, item, answer]", "data.lists=[]", "data.numeric=[]")
    types = ("data.types={user: string, answer: string}", "data.required=[user, item]")
    age = "metrics.row_age={feature: answer}"
    with pytest.raises(ConfigError, match="the model reads no rows of it"):
        _ran(runs, *pairs, *types, "data.label=price", _FACTORS, age)


@shows("metrics.window_seconds", "metrics.slices")
def test_effects_of_metrics_window_seconds_and_slices(runs: Runs) -> None:
    times = ("data.event_time=at", "data.event_time_unit=milliseconds")
    shown = _ran(runs, *times, "metrics.window_seconds=20").messages
    assert any("events before 2023-11-14 22:13:40 UTC  auc" in each for each in shown)
    # The default is a minute.
    assert not any("22:13:40" in each for each in _ran(runs, *times).messages)
    none = _ran(runs, *times, "metrics.window_seconds=null")
    assert not any("events before" in each for each in none.messages)
    sliced = ("metrics.slices={user: [1, 2], item: [3]}", "metrics.path=sliced.jsonl")
    _ran(runs, *times, *sliced, "metrics.window_seconds=20")
    window = json.loads(Path("sliced.jsonl").read_text().splitlines()[-1])["stream"]["window"]
    assert {each["dimension"] for each in window["slices"]} <= {"user", "item"}
    assert window["slices"]
    for slices, message in (
        ("{tags: [1]}", r"tags.*expected user, item"),
        ("{price: [1]}", "does not divide events into slices"),
        ("{item: [shoe]}", "found shoe, expected whole numbers"),
    ):
        with pytest.raises(ConfigError, match=message):
            _ran(runs, f"metrics.slices={slices}")
