"""The service without a network: answers, and errors with their statuses."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.adapter import initial_rows
from sparring.contracts import TableConfig, partition
from sparring_serve import LookupService, ShardPosition, ShardReplicas
from sparring_serve.inference import infer
from sparring_serve.limits import Admission, Limits
from sparring_serve.status import Status, StatusError
from sparring_serve.tables.recent_ids import RecentIds
from sparring_serve.testing import MemoryTables
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import Missing, PullReply, PullRequest, RowDtype, TableIds
from sparring_serve.wire.rows import as_bytes, read_found, read_rows

ITEM = TableConfig("item", 4, seed=3)


def pull(service: LookupService, ids: Any, seconds: float = 1.0, **fields: Any) -> PullReply:
    tables = ids if isinstance(ids, dict) else {"item": ids}
    asked = tuple(
        TableIds(name, as_bytes(np.array(each, np.int64))) for name, each in tables.items()
    )
    content = service.pull(encode(PullRequest(asked, **fields)), seconds)
    answer: PullReply = decode(PullReply, content)
    return answer


def rows_in(answer: PullReply, count: int, table: int = 0, dtype: int = 0) -> np.ndarray:
    given = answer.tables[table]
    out = np.empty((count, given.dim), np.float32)
    read_rows(given.rows, given.dim, dtype, out)
    return out


def test_rows_are_in_the_order_of_ids_and_report_which_were_found(
    service: LookupService, ids: np.ndarray
) -> None:
    answer = pull(service, ids)
    rows = rows_in(answer, len(ids))
    found = read_found(answer.tables[0].found, len(ids))
    assert found.tolist() == [True, False, True, True, False, False, False, True]
    assert rows[0].tolist() == [1, 7, -7, 0.5]
    assert np.array_equal(rows[~found], initial_rows(ids[~found], ITEM))
    assert (answer.version.step, answer.version.hash) == (1, f"{1:032x}")
    assert answer.age_seconds == 10.0


def test_a_call_has_all_tables_in_their_order(service: LookupService) -> None:
    answer = pull(service, {"user": [2, 3], "item": [5]})
    assert [each.table for each in answer.tables] == ["user", "item"]
    assert rows_in(answer, 2)[0].tolist() == [1, 2]
    assert rows_in(answer, 1, table=1)[0].tolist() == [1, 5, -5, 0.5]


def test_missing_rows_are_zeros_or_left_out(service: LookupService) -> None:
    answer = pull(service, [7, -1, 8], missing=Missing.ZERO)
    assert rows_in(answer, 3)[1].tolist() == [0, 0, 0, 0]
    answer = pull(service, [7, -1, 8], missing=Missing.ONLY_FOUND)
    assert rows_in(answer, 2)[:, 1].tolist() == [7, 8]
    assert read_found(answer.tables[0].found, 3).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", list(RowDtype))
def test_rows_have_the_requested_dtype(service: LookupService, dtype: RowDtype) -> None:
    answer = pull(service, [7], row_dtype=dtype)
    assert np.allclose(rows_in(answer, 1, dtype=dtype), [[1, 7, -7, 0.5]], atol=0.03)


def test_a_kept_version_may_be_named(service: LookupService, tables: MemoryTables) -> None:
    old = tables.versions()[0].hash
    new = tables.publish(2, {"item": {7: [2, 2, 2, 2]}}).hash
    assert tables.refresh()
    for version, first in ((old, 1), (new, 2), ("", 2)):
        answer = pull(service, [7], version=version)
        assert rows_in(answer, 1)[0, 0] == first
        assert answer.newest == new
    tables.publish(3, {})
    tables.refresh()
    refused(service, Status.NOT_FOUND, "is not kept", [7], version=old)


def refused(
    service: LookupService, status: Status, said: str, ids: Any, seconds: float = 1.0, **fields: Any
) -> StatusError:
    with pytest.raises(StatusError, match=said) as caught:
        pull(service, ids, seconds, **fields)
    assert caught.value.status is status
    assert service.admission.bytes_in_flight == 0
    return caught.value


def test_wrong_calls_are_rejected_with_the_fix(service: LookupService) -> None:
    wrong = Status.INVALID_ARGUMENT
    refused(service, wrong, "must have a deadline of at most 10 s, found none", [7], math.inf)
    refused(service, wrong, "must have a deadline of at most 10 s, found 11 s", [7], 11.0)
    refused(service, wrong, "must have a deadline", [7], math.nan)
    refused(service, Status.DEADLINE_EXCEEDED, "passed before", [7], 0.0)
    refused(
        service, Status.NOT_FOUND, "'itm' is not served here; did you mean 'item'", {"itm": [7]}
    )
    refused(
        service,
        wrong,
        r"row_dtype 7 is unknown to this server, sparring-serve .*FLOAT32 0, FLOAT16 1, INT8 2",
        [7],
        row_dtype=7,
    )
    refused(service, wrong, r"missing 9 is unknown .*the caller is newer", [7], missing=9)
    refused(
        service, Status.FAILED_PRECONDITION, "rows are 10 s old, and max_staleness_seconds is 9", [7],
        max_staleness_seconds=9.0,
    )  # fmt: skip
    with pytest.raises(StatusError, match="8 bytes per id"):
        service.pull(encode(PullRequest((TableIds("item", b"123"),))), 1.0)
    with pytest.raises(StatusError, match="invalid PullRequest"):
        service.pull(b"\x0a", 1.0)
    assert service.metrics.value("rejected_total", reason="deadline") == 3
    assert service.metrics.value("pulls_total", code="NOT_FOUND") == 1
    # An unknown name creates no series in the metrics.
    assert service.metrics.value("pulls_total", table="itm") == 0


def test_ids_tables_and_bytes_are_limited(tables: MemoryTables) -> None:
    position = ShardPosition(ShardReplicas((("a:1",),)))
    service = LookupService(tables, position, Limits(max_ids=5, max_tables=2, max_bytes=80))
    pull(service, {"item": [1, 2, 3], "user": [1, 2]})
    refused(service, Status.INVALID_ARGUMENT, "6 ids, and the maximum is 5", [1] * 6)
    refused(service, Status.INVALID_ARGUMENT, "the reply would have 85 bytes", [1] * 5)
    too_long = encode(PullRequest((TableIds("item", bytes(80)),)))
    with pytest.raises(StatusError, match="the request has 90 bytes, and the maximum is 80"):
        service.pull(too_long, 1.0)
    asked = encode(PullRequest((TableIds("item"),) * 3))
    with pytest.raises(StatusError, match="3 tables, and the maximum is 2"):
        service.pull(asked, 1.0)
    with pytest.raises(StatusError, match="contains a table twice"):
        service.pull(encode(PullRequest((TableIds("item"),) * 2)), 1.0)


def test_calls_are_admitted_while_their_bytes_fit() -> None:
    admission = Admission(100)
    with admission.of(500):  # it is the only call
        with (
            pytest.raises(StatusError, match="500 of 100 bytes are in flight") as caught,
            admission.of(1),
        ):
            pass
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
    with admission.of(60), admission.of(40):
        assert admission.bytes_in_flight == 100
    assert admission.bytes_in_flight == 0


def test_a_draining_server_is_not_ready(service: LookupService) -> None:
    assert service.describe().is_ready
    service.is_draining = True
    assert not service.describe().is_ready
    refused(service, Status.UNAVAILABLE, "use another replica", [7])


def test_a_foreign_partition_is_answered_with_the_shard_map(tables: MemoryTables) -> None:
    shards = ShardReplicas((("a:1",), ("b:1", "c:1"), ("d:1",)), number=5)
    keys = np.arange(300, dtype=np.int64)
    owners = shards.shard_of(keys)
    assert np.array_equal(np.unique(owners), [0, 1, 2])
    for shard in range(3):
        service = LookupService(tables, ShardPosition(shards, shard))
        pull(service, keys[owners == shard])
        begin, end = shards.partitions_of(shard)
        assert np.array_equal(owners == shard, (partition(keys) >= begin) & (partition(keys) < end))
        error = refused(service, Status.FAILED_PRECONDITION, f"shard {shard + 1} of 3 has", keys)
        assert ShardReplicas.from_bytes(error.shard_map) == shards


@given(st.binary(max_size=120))
@settings(max_examples=200)
def test_any_request_is_answered_or_rejected(content: bytes) -> None:
    tables = MemoryTables([ITEM], {"item": {7: [1, 2, 3, 4]}})
    service = LookupService(tables, ShardPosition(ShardReplicas((("a:1",),))))
    whole = encode(PullRequest((TableIds("item", bytes(16)),)))
    for request in (content, whole + content, content + whole):
        for call in (service.pull, lambda *each: infer(service, *each)):
            with contextlib.suppress(StatusError):
                call(request, 1.0)
    assert service.admission.bytes_in_flight == 0


def test_pulls_are_counted(service: LookupService) -> None:
    pull(service, {"item": [7, -1], "user": [3]})
    metrics = service.metrics
    assert metrics.value("pulls_total", table="item", code="OK") == 1
    assert metrics.value("pulls_total", table="user") == 1
    assert (metrics.value("ids_total"), metrics.value("found_total")) == (3, 1)


def test_recently_requested_ids_are_kept_within_limits() -> None:
    recent = RecentIds()
    for call in range(100):
        recent.note("item", np.arange(call * 10_000, call * 10_000 + 10_000))
    recent.note("item", np.array([990_001, 5, 5]))
    ids = recent.newest_first()["item"]
    # 63 calls of 4,096 ids, and the call with two new ones.
    assert (len(ids), len(np.unique(ids))) == (63 * 4096 + 1, len(ids))
    assert ids[:3].tolist() == [990_001, 5, 990_000]
