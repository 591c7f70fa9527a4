"""Events have the time of their column, of their message, or of their arrival, and a cut records it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sparring.errors import DataError
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.dataset import OpenRequest
from sparring_train.data.stream import dataset as streams
from sparring_train.data.stream.cut_log import CutLog, read_cuts
from sparring_train.data.stream.events import MessageDecoder
from sparring_train.streams import StreamMessage

from .stream_files import WritableFolder, as_arrow

NOON = 1_790_000_000.0


def section(url: str = "clicks", **keys: Any) -> StreamData:
    return StreamData(kind="stream", url=url, categorical=("item",), stop_at_end=True, **keys)


def times_of(message: StreamMessage, read_time: float | None, **keys: Any) -> list[float] | None:
    decoder = MessageDecoder(section(**keys), None, 0)
    events = decoder.parse("0", message)
    assert events is not None
    batch = decoder.decode([events], {"0": read_time})
    assert batch is not None
    return None if batch.event_times is None else batch.event_times.tolist()


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        (np.array([NOON, NOON + 1], np.int64).view("datetime64[s]"), "seconds"),
        (np.array([NOON * 1e3, NOON * 1e3 + 1000], np.int64).view("datetime64[ms]"), "seconds"),
        (np.array([NOON * 1e9, NOON * 1e9 + 1e9], np.int64).view("datetime64[ns]"), "seconds"),
        (np.array([NOON, NOON + 1], np.uint32), "seconds"),
        (np.array([NOON * 1e3, NOON * 1e3 + 1000], np.int64), "milliseconds"),
        (np.array([NOON * 1e6, NOON * 1e6 + 1e6], np.float64), "microseconds"),
        ([NOON * 1e3, NOON * 1e3 + 1000], "milliseconds"),
    ],
)
def test_a_column_of_times_is_read(values: Any, unit: str) -> None:
    if isinstance(values, list):
        payload = json.dumps([{"item": 1, "at": each} for each in values]).encode()
        options = {"format": "json"}
    else:
        payload = as_arrow(pyarrow.table({"item": [1, 2], "at": pyarrow.array(values)}))
        options = {}
    message = StreamMessage(0, payload, 5.0)
    found = times_of(message, NOON, event_time="at", event_time_unit=unit, **options)
    assert found == [NOON, NOON + 1]


@pytest.mark.parametrize(
    ("timestamp", "read_time", "expected"),
    [(5.0, 9.0, [5.0, 5.0]), (None, 9.0, [9.0, 9.0]), (None, None, None)],
)
def test_without_a_column_it_is_the_time_of_the_message_or_of_its_arrival(
    timestamp: float | None, read_time: float | None, expected: list[float] | None
) -> None:
    message = StreamMessage(0, b'[{"item": 1}, {"item": 2}]', timestamp)
    assert times_of(message, read_time, format="json") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "column 'at': found None, expected a timestamp, or a number since 1970"),
        (-1.0, "found -1.0, expected a timestamp"),
        ("noon", "column 'at': .*expected double"),
        (
            NOON + 61,
            r"found 1790000061.0, expected a time at most 60 s later than this machine's clock",
        ),
        (NOON * 1000, r"found 1790000000000.0, .* in the unit of data.event_time_unit"),
    ],
)
def test_a_bad_time_is_a_bad_row(value: Any, expected: str) -> None:
    rows = [{"item": 1, "at": NOON}, {"item": 2, "at": value}, {"item": 3, "at": NOON + 60}]
    message = StreamMessage(7, json.dumps(rows).encode())
    place = r"clicks, partition 0, offset 7"
    with pytest.raises(DataError, match=rf"{place}.*{expected}.*bad_rows: skip"):
        times_of(message, NOON, event_time="at", format="json")
    keys = {"event_time": "at", "format": "json", "bad_rows": "skip"}
    good = json.dumps([rows[0], rows[2]]).encode()
    expected_times = times_of(StreamMessage(7, good), NOON, **keys)
    if value != "noon":  # A value of another type makes the whole message unreadable.
        assert times_of(message, NOON, **keys) == expected_times == [NOON, NOON + 60]


def test_texts_are_no_times() -> None:
    payload = as_arrow(pyarrow.table({"item": [1], "at": ["2026-11-27"]}))
    with pytest.raises(DataError, match="found '2026-11-27', expected a timestamp"):
        times_of(StreamMessage(0, payload), NOON, event_time="at")


def test_a_replay_skips_the_same_events_of_the_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = WritableFolder(tmp_path / "events", is_numbered=True)
    now = time.time()
    stream.append_table(".", pyarrow.table({"item": range(3), "at": [now - 5, now + 3600, now]}))
    keys = {"url": str(stream.path), "event_time": "at", "bad_rows": "skip"}

    def cut(**more: Any) -> tuple[Any, Any]:
        data = streams.StreamDataset(section(**keys, **more), OpenRequest(1, None))
        [batch] = data.batches(0)
        assert batch is not None
        return batch.event_times.tolist(), batch.cut

    times, original = cut()
    assert (times, original.event_time) == ([now - 5, now], now)
    log = CutLog(str(tmp_path), 1, lambda message: None)
    log.add(1, original)
    log.flush()
    [recorded] = read_cuts(str(tmp_path))
    assert recorded.event_time == now
    assert now <= recorded.ranges[0].read_time <= time.time()
    # Two hours later, the event would no longer be in the future.
    later = SimpleNamespace(time=lambda: now + 7200, monotonic=time.monotonic)
    monkeypatch.setattr(streams, "time", later)
    assert cut()[0] == [now - 5, now + 3600, now]
    assert cut(cuts_from=str(tmp_path)) == (times, original)


def test_a_log_of_an_earlier_version_is_readable(tmp_path: Path) -> None:
    (tmp_path / "cuts").mkdir()
    columns = {"step": [1], "partition": ["a"], "begin": [0], "end": [5], "num_events": [5]}
    table = pyarrow.table({**columns, "world_size": pyarrow.array([1], pyarrow.int32())})
    parquet.write_table(table, tmp_path / "cuts/00000000-000000000001.parquet")
    [cut] = read_cuts(str(tmp_path))
    assert (cut.ranges[0].end, cut.event_time, cut.ranges[0].read_time) == (5, None, None)
