"""A run on a stream trains each event exactly once, like a run on files with the same events."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pyarrow = pytest.importorskip("pyarrow", reason="writes Parquet")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from pyarrow import parquet

from sparring import make_plugin_manager
from sparring.errors import ConfigError, DataError
from sparring_train.columns import CutRange
from sparring_train.data.stream.cut_log import read_cuts
from sparring_train.pytorch.trainer import train

from ..config.config_runs import Runs
from ..data.stream.conftest import (  # noqa: F401 (fixtures)
    kafka_broker,
    new_redis_streams,
    new_topic,
    simulated_kafka,
    tansu,
)
from ..data.stream.stream_files import WritableFolder, WritableRedis, WritableTopic, as_arrow
from .stream_runs import CONFIG, NUM_EVENTS, Events, Quiet


def payloads(table: Any, kind: str) -> list[bytes]:
    """Returns messages with one or several events."""
    if kind == "arrow":
        # 7 and 16 do not divide the same numbers, so some messages wait for the next step.
        return [as_arrow(table.slice(begin, 16)) for begin in range(0, table.num_rows, 16)]
    rows = table.to_pylist()
    singles = [json.dumps(row).encode() for row in rows[:100]]
    lists = [json.dumps(rows[begin : begin + 4]).encode() for begin in range(100, len(rows), 4)]
    return singles + lists


def test_a_folder_trains_like_files(events: Events) -> None:
    expected = events.run("", "files")
    found = events.run(events.write_folder(), "stream")
    assert (found.metrics, found.rows, found.steps) == (expected.metrics, expected.rows, 7)
    events.check_same_bits("files", "stream")
    cuts = read_cuts(str(events.folder / "stream"))
    ranges = [(each.begin, each.end, each.num_events) for cut in cuts for each in cut.ranges]
    assert ranges == [(at, min(at + 64, 400), min(64, 400 - at)) for at in range(0, 400, 64)]


@pytest.mark.parametrize("kind", ["arrow", "json"])
def test_redis_trains_like_files(
    kind: str,
    events: Events,
    new_redis_streams: Callable[..., WritableRedis],  # noqa: F811 (a fixture)
) -> None:
    stream = new_redis_streams()
    stream.append_payloads(stream.partitions[0], payloads(events.train, kind))
    expected = events.run("", "files")
    found = events.run(stream.url, "stream", f"data.format={kind}")
    assert (found.metrics, found.rows, found.steps) == (expected.metrics, expected.rows, 7)
    events.check_same_bits("files", "stream")


def test_kafka_trains_like_files(
    events: Events,
    new_topic: Callable[[], WritableTopic],  # noqa: F811 (a fixture)
) -> None:
    stream = new_topic()
    stream.append_payloads(stream.partitions[1], payloads(events.train, "arrow"))
    expected = events.run("", "files")
    found = events.run(stream.url, "stream")
    assert (found.metrics, found.rows) == (expected.metrics, expected.rows)
    events.check_same_bits("files", "stream")


def test_several_partitions_are_trained_in_the_recorded_order(events: Events) -> None:
    url = events.write_folder(partitions=2)
    result = events.run(url, "stream")
    order = [
        int(each.partition) * 200 + offset
        for cut in read_cuts(str(events.folder / "stream"))
        for each in cut.ranges
        for offset in range(each.begin, each.end)
    ]
    assert sorted(order) == [*range(NUM_EVENTS)]
    table = pyarrow.concat_tables([events.train.take(order), events.test])
    parquet.write_table(table, events.folder / "log.parquet")
    assert events.run("", "files").metrics == result.metrics
    events.check_same_bits("files", "stream")


def test_two_ranks_divide_the_partitions_and_agree_on_cuts(events: Events, runs: Runs) -> None:
    url = events.write_folder(partitions=3)
    # Ranks that are threads share torch's random numbers, so this model has no layers.
    pairs = ("data.numeric=[]", "data.required=[user, item]")
    own = (*pairs, "model={kind: matrix_factorization, dim: 3}")
    two, other = runs.ranks(*events.words(url, "two", *own), text=CONFIG)
    cuts = read_cuts(str(events.folder / "two"))
    assert {cut.world_size for cut in cuts} == {2}
    # Both ranks have 32 events of each step, of which one has two partitions.
    assert cuts[0].ranges == (CutRange("0", 0, 32, 32), CutRange("2", 0, 32, 32))
    for name in ("0", "1", "2"):
        ranges = [each for cut in cuts for each in cut.ranges if each.partition == name]
        assert [each.begin for each in ranges] == [0, *(each.end for each in ranges[:-1])]
        assert sum(each.num_events for each in ranges) == 133
    assert other.end.metrics == two.end.metrics
    replayed = runs._run(
        CONFIG, (*events.words(url, "one", *own), f"data.cuts_from={events.folder / 'two'}")
    )[0]
    assert (replayed.samples, replayed.end.rows) == (two.samples, two.end.rows)
    np.testing.assert_allclose(replayed.losses, two.losses, rtol=1e-5)
    # A rank that has no partition takes part, and an error of one rank ends all.
    assert (
        sum(runs.ranks(*events.words(url, "four", *own), text=CONFIG, world_size=4)[0].samples)
        == 399
    )
    Path(url, "2/0.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match=r"as Parquet failed"):
        runs.ranks(*events.words(url, "bad", *own), text=CONFIG)


class Interrupting(Quiet):
    def on_step(self, step: int, loss: float, samples: int) -> None:
        if step == 5:
            raise KeyboardInterrupt


def test_an_interrupted_run_resumes_exactly(events: Events) -> None:
    url = events.write_folder()
    expected = events.run(url, "whole")
    config = events.config(url, "parts", "snapshots.every_steps=2")
    with pytest.raises(KeyboardInterrupt):
        train(config, make_plugin_manager(), Interrupting())
    result = events.run(url, "parts", "snapshots.resume=true")
    assert (result.metrics, result.resumed_steps) == (expected.metrics, 4)
    events.check_same_bits("whole", "parts")


@pytest.mark.long
def test_a_killed_run_resumes_exactly(events: Events) -> None:
    url = events.write_folder()
    expected = events.run(url, "whole")
    config = events.folder / "run.yaml"
    config.write_text(CONFIG)
    words = [
        "data.kind=stream", f"data.url={url}", "data.max_milliseconds=20000",
        f"data.test_path={events.folder / 'test.parquet'}",
        f"snapshots.url={events.folder / 'parts'}", "snapshots.every_steps=2",
    ]  # fmt: skip
    command = [sys.executable, "-m", "sparring", "train", str(config), *words]
    # 400 events give 6 steps of 64, then it waits for more.
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        _wait_for((events.folder / "parts/step-000000000006").exists)
        process.send_signal(signal.SIGKILL)
    # As if it had been killed before the last save.
    shutil.rmtree(events.folder / "parts/step-000000000006")
    result = events.run(url, "parts", "snapshots.resume=true")
    assert result.resumed_steps == 4
    assert (result.metrics, result.rows, result.steps) == (
        expected.metrics, expected.rows, expected.steps,
    )  # fmt: skip
    events.check_same_bits("whole", "parts")
    recorded = [cut.ranges for cut in read_cuts(str(events.folder / "parts"))]
    assert recorded == [cut.ranges for cut in read_cuts(str(events.folder / "whole"))]


def _wait_for(is_done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end, "the run does not continue"
        time.sleep(0.05)


def test_a_run_that_waits_trains_new_events_and_stops_by_sigterm(events: Events) -> None:
    stream = WritableFolder(events.folder / "events", is_numbered=True)
    stream.append_table(".", events.train.slice(0, 10))
    seen: list[int] = []

    class Adding(Quiet):
        def on_step(self, step: int, loss: float, samples: int) -> None:
            seen.append(samples)
            if step == 1:
                threading.Timer(0.3, stream.append_table, (".", events.train.slice(10, 5))).start()
            else:
                # The run then waits for events that do not come.
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()

    config = events.config(
        str(stream.path), "run", "data.stop_at_end=false", "data.max_milliseconds=50"
    )
    result = train(config, make_plugin_manager(), Adding())
    assert result.is_terminated
    assert seen == [10, 5]
    assert events.newest("run").state("position").values["stream"] == {".": 15}
    # It resumes after them, although they still exist.
    assert events.run(str(stream.path), "run", "snapshots.resume=true").steps == 2


def test_a_run_on_files_continues_on_a_stream(events: Events) -> None:
    events.run("", "files")
    url = events.write_folder()
    start = f"snapshots.start_from={events.folder / 'files'}"
    result = events.run(url, "stream", start)
    assert (result.steps, result.resumed_steps) == (14, 7)
    with pytest.raises(ConfigError, match=r"its run has data.numeric: .* this one has"):
        events.run(url, "other", start, "data.numeric=[]")


def test_a_retention_gap_ends_a_resumed_run(events: Events) -> None:
    url = events.write_folder()
    events.run(url, "run", "training.steps=1")
    Path(url, "0.parquet").unlink()
    with pytest.raises(DataError, match=r"partition \.: the offsets 64 to 89 are missing"):
        events.run(url, "run", "snapshots.resume=true")


def test_a_stream_that_was_replaced_ends_a_resumed_run(events: Events) -> None:
    url = events.write_folder()
    events.run(url, "run", "training.steps=2")
    for begin in (90, 180, 270, 360):
        Path(url, f"{begin}.parquet").unlink()
    with pytest.raises(DataError, match=r"ends at offset 90, but .* the events before 128"):
        events.run(url, "run", "snapshots.resume=true")
    Path(url, "0").mkdir()
    with pytest.raises(DataError, match=r"partition \. does not exist, found 0"):
        events.run(url, "run", "snapshots.resume=true")


GOOD = {"user": "ann", "item": 3, "price": 1.5, "clicked": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{", "Expecting property name"),
        (b"\xff\xfe", "Expecting value"),
        (b"3", "found int in JSON, expected an object per event"),
        (
            json.dumps({"user": "ann", "price": 1, "clicked": 0}),
            "column 'item' is missing, found user",
        ),
        (
            json.dumps({**GOOD, "item": "shoe"}),
            "column 'item': found 'shoe', expected a whole number",
        ),
        (json.dumps({**GOOD, "user": 7}), "column 'user': .* expected string; set the type"),
        (json.dumps({**GOOD, "price": "high"}), "column 'price': .* expected double"),
        (
            json.dumps({**GOOD, "clicked": 2}),
            "row 1, column 'clicked': found 2.0, expected a label",
        ),
        (json.dumps([GOOD, {**GOOD, "price": 1e999}]), "row 2, column 'price': found inf"),
    ],
)
def test_a_bad_message_is_named_or_becomes_a_dead_letter(
    value: bytes | str,
    expected: str,
    events: Events,
    new_redis_streams: Callable[..., WritableRedis],  # noqa: F811 (a fixture)
) -> None:
    stream = new_redis_streams()
    [name] = stream.partitions
    bad = value.encode() if isinstance(value, str) else value
    good = json.dumps(GOOD).encode()
    stream.append_payloads(name, [good, bad, good])
    with pytest.raises(DataError, match=rf"partition {name}, offset 1.*{expected}.*bad_rows: skip"):
        events.run(stream.url, "run", "data.format=json")
    letters = events.folder / "letters"
    options = ["data.format=json", "data.bad_rows=skip", f"data.dead_letters={letters}"]
    result = events.run(stream.url, "skipping", *options)
    assert result.skipped == {"rows_skipped": 1}
    [letter] = map(json.loads, (letters / "rank-0.jsonl").read_text().splitlines())
    assert (letter["partition"], letter["offset"]) == (name, 1)
    [cut] = read_cuts(str(events.folder / "skipping"))
    assert (cut.ranges[0].begin, cut.ranges[0].end) == (0, 3)


@pytest.mark.parametrize(
    ("values", "steps"),
    [(["good", "bad"], 1), (["bad", "bad"], 0), (["good", "2"], 2), (["[]"], 0)],
)
def test_a_stream_that_ends_with_bad_messages_ends(
    values: list[str],
    steps: int,
    events: Events,
    new_redis_streams: Callable[..., WritableRedis],  # noqa: F811 (a fixture)
) -> None:
    stream = new_redis_streams()
    known = {"good": GOOD, "bad": {}, "2": {**GOOD, "clicked": 2}, "[]": []}
    payloads = [json.dumps(known[each]).encode() for each in values]
    stream.append_payloads(stream.partitions[0], payloads)
    options = ["data.format=json", "data.bad_rows=skip", "data.batch_size=1"]
    if steps == 0:
        with pytest.raises(DataError, match="found no sample to train on"):
            events.run(stream.url, "run", *options)
        return
    result = events.run(stream.url, "run", *options)
    assert (result.steps, result.skipped) == (steps, {"rows_skipped": 1})
    assert all(np.isfinite(list(result.metrics.values())))


def test_arrow_of_another_type_is_rejected_and_a_new_column_is_ignored(
    events: Events,
    new_redis_streams: Callable[..., WritableRedis],  # noqa: F811 (a fixture)
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = new_redis_streams()
    [name] = stream.partitions
    one = events.train.slice(0, 8)
    more = events.train.slice(8, 8).append_column("city", [["x"] * 8])
    stream.append_payloads(name, [as_arrow(one), as_arrow(more), as_arrow(more)])
    assert events.run(stream.url, "run").steps == 1
    assert caplog.text.count("new columns are ignored: city") == 1
    texts = one.set_column(1, "item", one["item"].cast("string"))
    double = one.append_column("item", one["item"])
    stream.append_payloads(name, [as_arrow(texts), as_arrow(double), b"no Arrow"])
    with pytest.raises(DataError, match=r"offset 3: column 'item': found strings, expected whole"):
        events.run(stream.url, "other")
    assert events.run(stream.url, "skipping", "data.bad_rows=skip").skipped == {"rows_skipped": 3}


def test_wrong_settings_are_reported(events: Events) -> None:
    for override, message in (
        ("training.epochs=2", r"must be 1, because a stream is read once"),
        ("data.dead_letters=x", r"requires that bad rows are skipped"),
        ("data.types={price: string}", r"column that is not in data.categorical"),
        ("data.max_milliseconds=0", r"max_milliseconds"),
        ("data.url=redis://user:secret@host/0/s", r"password"),
    ):
        with pytest.raises(ConfigError, match=message):
            events.config("events", "run", override)
