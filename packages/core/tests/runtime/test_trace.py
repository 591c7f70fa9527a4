"""Traces: finds overlap transfers, and Perfetto can open the files."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.engine.resource_manager import ResourceManager
from sparring.exchange.messages import PushRequest
from sparring.exchange.ring import RingExchange
from sparring.runtime.trace import Span, Trace
from sparring.storage.open import open_storage
from sparring_testing.processes.rank_threads import run_ranks

TABLE = TableConfig("item", 8)


def slow_storage() -> Storage:
    """Every find takes 10 ms."""
    storage = open_storage("memory", TABLE)
    find = storage._find_impl

    def slow_find(*arguments: Any) -> None:
        time.sleep(0.01)
        find(*arguments)

    storage._find_impl = slow_find  # type: ignore[method-assign]
    return storage


def slow_exchange(collective: Collective, trace: Trace) -> None:
    """Pulls rows on all ranks."""
    options = ExchangeOptions(chunk_rows=50)
    shard_map = ShardMap.balanced(collective.world_size)
    exchange = RingExchange(collective, shard_map, options)
    exchange.trace = trace
    exchange.pull(slow_storage(), TABLE, np.arange(600), Columns(0, 8))
    exchange.close()


def overlapping_seconds(spans: list[Span]) -> float:
    """Duration of finds that overlap messages with keys or rows."""
    finds = [each for each in spans if each.name == "find"]
    messages = [each for each in spans if each.name in ("send rows", "receive rows")]
    assert finds
    covered = 0
    for find in finds:
        shared = [
            min(find.end_ns, each.end_ns) - max(find.begin_ns, each.begin_ns) for each in messages
        ]
        covered += max([0, *shared])
    return covered / 1e9


def test_rows_are_found_while_others_are_sent() -> None:
    def body(collective: Collective) -> float:
        trace = Trace(collective.rank)
        slow_exchange(collective, trace)
        return overlapping_seconds(trace.spans)

    for seconds in run_ranks(2, body):
        assert seconds > 0.05


def test_waiting_for_messages_and_finds_is_a_span_of_the_driving_thread() -> None:
    def body(collective: Collective) -> tuple[float, bool]:
        trace = Trace(collective.rank)
        begin = time.perf_counter_ns()
        slow_exchange(collective, trace)
        passed = time.perf_counter_ns() - begin
        waits = [each for each in trace.spans if each.name == "wait"]
        own = threading.get_ident()
        assert all(each.thread_id == own for each in waits)
        waited = sum(each.end_ns - each.begin_ns for each in waits)
        return waited / 1e9, waited < passed

    # Each rank finds 300 rows for itself and 300 for the other one in 12 finds of 10 ms.
    for waited, is_less in run_ranks(2, body):
        assert waited > 0.05
        assert is_less


def test_rows_for_the_update_are_found_while_gradients_are_sent() -> None:
    def body(collective: Collective) -> tuple[int, int]:
        trace = Trace(collective.rank)
        options = ExchangeOptions(chunk_rows=20)
        exchange = RingExchange(collective, ShardMap.balanced(2), options)
        exchange.trace = trace
        keys = np.arange(collective.rank, 600, 2)
        request = PushRequest(
            TABLE,
            keys,
            np.ones((300, 8), np.float32),
            lambda: ResourceManager.make_accumulator(TABLE),
            slow_storage(),
        )
        owned = exchange.push_all([request])[0]
        exchange.close()
        assert owned.found is not None
        assert len(owned.found.found) == len(owned.keys)
        finds = [each for each in trace.spans if each.name == "find"]
        received = [each for each in trace.spans if each.name == "receive gradients"]
        first = min(each.begin_ns for each in finds)
        return first, max(each.end_ns for each in received)

    for begun, received in run_ranks(2, body):
        assert begun < received


def test_a_trace_of_all_ranks_is_one_file_of_trace_events(tmp_path: Path) -> None:
    def body(collective: Collective) -> None:
        trace = Trace(collective.rank)
        slow_exchange(collective, trace)
        trace.write_together(tmp_path / "out.json", collective)

    run_ranks(3, body)
    document = json.loads((tmp_path / "out.json").read_text())
    events = document["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2}
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0", "rank 1", "rank 2"}
    finds = [event for event in events if event["ph"] == "X" and event["name"] == "find"]
    assert all(event["dur"] >= 9_000 for event in finds)
    assert all("hop" in event["args"]["of"] for event in finds)
    begun = [event["id"] for event in events if event["ph"] == "b"]
    ended = [event["id"] for event in events if event["ph"] == "e"]
    assert sorted(begun) == sorted(ended)
    assert len(set(begun)) == len(begun)


def test_a_full_trace_counts_dropped_spans(monkeypatch: Any) -> None:
    monkeypatch.setattr("sparring.runtime.trace.MAX_SPANS", 2)
    trace = Trace()
    for number in range(5):
        with trace.span("work", number=number):
            pass
    assert [span.details for span in trace.spans] == [{"number": 0}, {"number": 1}]
    assert trace.num_dropped == 3


def test_without_a_trace_nothing_is_recorded() -> None:
    exchange = RingExchange(LocalGroup(1).join(0), ShardMap.balanced(1))
    assert exchange.trace is None
