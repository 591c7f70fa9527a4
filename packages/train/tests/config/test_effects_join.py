"""Effects of the keys of `data.join`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from sparring.errors import InvalidArgumentError, StorageIOError
from sparring_train.data.join.working_folder import WorkingFolder
from sparring_train.data.stream.cut_log import read_cuts

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

from .config_runs import Ran, Runs, shows

_JOIN = """
seed: 3
threads: 1
data:
  kind: stream
  url: shown
  label: clicked
  categorical: [user]
  types: {shown: string}
  event_time: at
  batch_size: 100
  max_milliseconds: 20000
  stop_at_end: true
  join:
    key: [shown]
    actions: {clicks: {url: clicks, event_time: at}}
    window_seconds: 10
    watermark_seconds: 0
model: {kind: matrix_factorization, dim: 2}
storage: {backend: memory}
"""
_NUM_IMPRESSIONS, _NUM_CLICKS = 40, 20


def _ran(runs: Runs, *overrides: str) -> Ran:
    """Impression n is at second n. Every second one has a click 8 s later."""
    if not Path("shown").exists():
        shown = range(_NUM_IMPRESSIONS)
        impressions = [{"shown": f"i{n}", "user": n % 7, "other": n, "at": n} for n in shown]
        clicks = [
            {"shown": f"i{n}", "other": n, "at": n + 8, "ms": 1000 * n + 8000, "stars": n % 5}
            for n in range(0, _NUM_IMPRESSIONS, 2)
        ]
        for name, rows in (("shown", impressions), ("clicks", clicks)):
            Path(name).mkdir()
            table = pyarrow.Table.from_pylist(rows)
            parquet.write_table(table, f"{name}/0.parquet", row_group_size=4)
        Path("clicks.jsonl").write_text("\n".join(json.dumps(row) for row in clicks))
    return runs._run(
        _JOIN, ("model={kind: dlrm, embedding_dim: 2, bottom_mlp: [2], top_mlp: [2]}", *overrides)
    )[0]


def _counts(runs: Runs, *overrides: str) -> Any:
    return _ran(runs, *overrides).end.extra["join"]


@shows(
    "data:stream.join.key",
    "data:stream.join.actions.<name>.url",
    "data:stream.join.actions.<name>.key",
    "data:stream.join.actions.<name>.event_time",
)
def test_effects_of_key_and_of_url_key_and_event_time_of_actions(runs: Runs) -> None:
    counts = _counts(runs)
    assert (counts["joined"], counts["open"]) == (19, 3)
    # There are only 7 users.
    keys = ("data.types={}", "data.join.key=[user]", "data.join.actions.clicks.key=[other]")
    other = _counts(runs, *keys)
    assert other["repeated"] > 0
    assert _counts(runs, "data.types={}", "data.join.key=[other]") == counts
    # Without a column, a click has the time at which it was read, long after the impressions.
    late = _counts(runs, "data.join.actions.clicks.event_time=null")
    assert (late["joined"], late["without_action"]) == (0, _NUM_IMPRESSIONS)


@shows(
    "data:stream.join.actions.<name>.options",
    "data:stream.join.actions.<name>.format",
    "data:stream.join.actions.<name>.event_time_unit",
)
def test_effects_of_actions_options_format_and_event_time_unit(runs: Runs) -> None:
    stream = "data.join.actions.clicks"
    lines = (f"{stream}.url=lines://clicks.jsonl", f"{stream}.format=json")
    assert _counts(runs, *lines)["joined"] == 19
    assert _counts(runs, *lines, f"{stream}.options={{skip: 10}}")["joined"] == 9
    units = (f"{stream}.event_time=ms", f"{stream}.event_time_unit=milliseconds")
    assert _counts(runs, *units) == _counts(runs)


@shows("data:stream.join.actions.<name>.label")
def test_effect_of_actions_label(runs: Runs) -> None:
    stars = "data.join.actions.clicks.label=stars"
    model = "model={kind: matrix_factorization, dim: 2, item: other}"
    factors = (model, "data.categorical=[user, other]", "data.required=[user, other]")
    assert _ran(runs, *factors, stars).losses != _ran(runs, *factors).losses


@shows(
    "data:stream.join.window_seconds",
    "data:stream.join.watermark_seconds",
    "data:stream.join.idle_seconds",
)
def test_effects_of_join_window_seconds_watermark_seconds_and_idle_seconds(runs: Runs) -> None:
    assert _counts(runs, "data.join.window_seconds=7")["joined"] == 0
    assert _counts(runs, "data.join.watermark_seconds=5")["open"] == 8
    # The newest impression is 7 s older than the newest click.
    limits = ("data.stop_at_end=false", "data.max_milliseconds=20", "training.steps=1")
    idle = _ran(runs, *limits, "data.join.idle_seconds=0.2", "data.join.window_seconds=40")
    assert idle.samples == [7]


@shows("data:stream.join.late", "data:stream.join.late_seconds", "data:stream.join.late_weight")
def test_effects_of_join_late_late_seconds_and_late_weight(runs: Runs) -> None:
    short = "data.join.window_seconds=5"
    assert _counts(runs, short)["corrected"] == 0
    late = (short, "data.join.late=correct")
    corrected = _ran(runs, *late)
    assert corrected.end.extra["join"]["corrected"] == _NUM_CLICKS
    assert _counts(runs, *late, "data.join.late_seconds=2")["corrected"] == 0
    assert _ran(runs, *late, "data.join.late_weight=3").losses != corrected.losses


@shows("data:stream.join.storage", "data:stream.join.options", "data:stream.join.path")
def test_effects_of_join_storage_options_and_path(runs: Runs) -> None:
    pytest.importorskip("sparring_rocksdb", reason='pip install "sparring[rocksdb]"')
    place = ("data.join.storage=rocksdb", "data.join.path=store")
    assert _ran(runs, *place, "snapshots.url=run").losses == _ran(runs).losses
    assert any(Path("run/open_impressions").glob("*.sst"))
    assert read_cuts("run")[0].reads
    with pytest.raises(InvalidArgumentError, match=r"unknown option 'write_buffer', did you mean"):
        _ran(runs, *place, "data.join.options={write_buffer: 1}")
    used = WorkingFolder("store", 0)
    with pytest.raises(StorageIOError, match="another run uses store"):
        _ran(runs, *place)
    used.close()
