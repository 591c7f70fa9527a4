"""Recommendations equal sorting all products, for any shards, and are from one version."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import hash_strings
from sparring.adapter import initial_rows
from sparring.contracts import TableConfig
from sparring.errors import DeadlineError, InvalidArgumentError, UnknownTableError
from sparring_serve import (
    AsyncLookupClient,
    ClientConfig,
    LookupClient,
    LookupService,
    Recommendations,
    ReplicasFailedError,
    ShardPosition,
    ShardReplicas,
    VersionGoneError,
)
from sparring_serve.client.transport import Send
from sparring_serve.limits import Limits
from sparring_serve.recommendation import recommend
from sparring_serve.status import StatusError
from sparring_serve.testing import FaultyTransport, MemoryTables
from sparring_serve.testing.front_ends import Folder
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import RecommendReply, RecommendRequest
from sparring_serve.wire.rows import as_bytes

from .conftest import Serve

library = pytest.importorskip("sparring_packed.library", reason="sparring-packed is not installed")
if not library.library_path().exists():
    pytest.skip("libsparring_packed.so is not built", allow_module_level=True)

ITEM, USER = TableConfig("item", 4, seed=3), TableConfig("user", 4, seed=4)
TAG = TableConfig("tag", 3)
NUM_ITEMS = 300
LONG = ClientConfig(deadline_seconds=20)


def rows_of_step(step: int) -> dict[str, dict[int, Any]]:
    """Small whole numbers: products are exact, and many are equal."""
    random = np.random.default_rng(step)
    return {
        "item": {key - 50: random.integers(-3, 4, 4) for key in range(NUM_ITEMS)},
        "user": {key: random.integers(-3, 4, 4) for key in range(20)},
    }


def expected_of(
    step: int, queries: Any, k: int, exclude: Any = None
) -> tuple[list[list[int]], list[list[float]]]:
    items = rows_of_step(step)["item"]
    keys, rows = np.array(list(items)), np.array(list(items.values()), np.float32)
    found = []
    for number, scores in enumerate(np.asarray(queries, np.float32) @ rows.T):
        unwanted = [] if exclude is None else list(exclude[number])
        order = [at for at in np.lexsort((keys, -scores)) if keys[at] not in unwanted][:k]
        found.append((keys[order].tolist(), scores[order].tolist()))
    return [each for each, _ in found], [each for _, each in found]


class Cluster:
    """Shards of two replicas, each with its own part of the rows, and a client of them."""

    def __init__(self, num_shards: int, *, limits: Limits | None = None, **config: Any) -> None:
        names = tuple((f"s{each}r0:1", f"s{each}r1:1") for each in range(num_shards))
        self.shards = ShardReplicas(names)
        self.tables: dict[str, MemoryTables] = {}
        self.services: dict[str, Any] = {}
        for shard, replicas in enumerate(names):
            for name in replicas:
                tables = MemoryTables([ITEM, USER, TAG], self.part(1, shard))
                self.tables[name] = tables
                self.services[name] = LookupService(
                    tables, ShardPosition(self.shards, shard), limits or Limits()
                )
        self.transport = FaultyTransport(self.services)
        self.client = self.client_of(self.shards, **config)

    def part(self, step: int, shard: int) -> dict[str, dict[int, Any]]:
        """The rows of a shard."""
        parts: dict[str, dict[int, Any]] = {}
        for table, rows in rows_of_step(step).items():
            keys = np.array(list(rows))
            mine = keys[self.shards.shard_of(keys) == shard].tolist()
            parts[table] = {key: rows[key] for key in mine}
        return parts

    def publish(self, step: int) -> None:
        for name, tables in self.tables.items():
            tables.publish(step, self.part(step, int(name[1 : name.index("r")])))
            tables.refresh()

    def client_of(self, shards: Any, **config: Any) -> LookupClient:
        transport = self.transport
        return LookupClient(
            shards, ClientConfig(**config), transport=transport, clock=transport.clock
        )

    def total(self, metric: str, **labels: str) -> float:
        return sum(each.metrics.value(metric, **labels) for each in self.services.values())


def check(found: Recommendations, step: int, queries: Any, k: int, exclude: Any = None) -> None:
    keys, scores = expected_of(step, queries, k, exclude)
    assert found.counts.tolist() == [len(each) for each in keys]
    assert found.version.step == step
    for number, count in enumerate(found.counts):
        assert found.keys[number, :count].tolist() == keys[number]
        assert found.scores[number, :count].tolist() == scores[number]
        assert (found.keys[number, count:] == -1).all()
        assert (found.scores[number, count:] == -np.inf).all()


QUERIES = np.random.default_rng(9).integers(-3, 4, (7, 4))


@pytest.mark.parametrize("num_shards", [1, 2, 5])
@pytest.mark.parametrize("k", [1, 10, NUM_ITEMS + 20])
def test_the_best_of_all_shards_equal_sorting_all_rows(num_shards: int, k: int) -> None:
    cluster = Cluster(num_shards)
    check(cluster.client.recommend("item", QUERIES, k), 1, QUERIES, k)
    random = np.random.default_rng(1)
    exclude = [random.integers(-60, 260, each * 20) for each in range(len(QUERIES))]
    found = cluster.client.recommend("item", QUERIES, k, exclude=exclude)
    check(found, 1, QUERIES, k, exclude)
    assert found.found is None
    assert cluster.total("recommends_total", table="item", code="OK") == 2 * num_shards
    assert cluster.total("queries_total") == 2 * num_shards * len(QUERIES)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_query_may_be_a_key_of_another_table(num_shards: int) -> None:
    users = [3, 17, 99, 3]
    found = Cluster(num_shards).client.recommend("item", {"user": users}, 5)
    assert found.found is not None
    assert found.found.tolist() == [True, True, False, True]
    rows = rows_of_step(1)["user"]
    known = np.array([rows[3], rows[17]])
    part = Recommendations(found.keys[:2], found.scores[:2], found.counts[:2], found.version)
    check(part, 1, known, 5)
    # A query without a row uses its initial value.
    strange = expected_of(1, initial_rows(np.array([99]), USER), 5)[0]
    assert found.keys[2:].tolist() == [*strange, found.keys[0].tolist()]


def test_keys_may_be_strings() -> None:
    ann, hat, shoe = hash_strings(["ann", "hat", "shoe"]).tolist()
    rows = {"item": {hat: [1, 0, 0, 0], shoe: [2, 0, 0, 0]}, "user": {ann: [1, 0, 0, 0]}}
    shards = ShardReplicas((("a:1",),))
    service = LookupService(MemoryTables([ITEM, USER], rows), ShardPosition(shards))
    client = LookupClient(shards, transport=FaultyTransport({"a:1": service}))
    assert client.recommend("item", {"user": ["ann"]}, 2).keys.tolist() == [[shoe, hat]]
    found = client.recommend("item", {"user": ["ann"]}, 1, exclude=[["shoe"]])
    assert found.keys.tolist() == [[hat]]


def test_no_queries_and_a_table_without_rows_have_no_recommendations() -> None:
    client = Cluster(2).client
    assert client.recommend("item", np.empty((0, 4)), 3).keys.shape == (0, 3)
    assert client.recommend("tag", np.ones((2, 3)), 3).counts.tolist() == [0, 0]


@pytest.mark.parametrize("queries", [QUERIES, {"user": [3]}])
def test_answers_are_from_one_version_and_follow_newer_ones(queries: Any) -> None:
    cluster = Cluster(2)

    def expected(step: int) -> Any:
        if isinstance(queries, dict):
            return [rows_of_step(step)["user"][3]]
        return queries

    client = cluster.client
    check(client.recommend("item", queries), 1, expected(1), 10)
    first = client.describe().common_version()
    # One shard is newer: the version that both have is requested.
    for name in cluster.shards.shards[0]:
        cluster.tables[name].publish(2, cluster.part(2, 0))
        cluster.tables[name].refresh()
    check(client.recommend("item", queries), 1, expected(1), 10)
    for name in cluster.shards.shards[1]:
        cluster.tables[name].publish(2, cluster.part(2, 1))
        cluster.tables[name].refresh()
    client.recommend("item", queries)  # notified of the newest version, the client uses it
    check(client.recommend("item", queries), 2, expected(2), 10)
    check(client.recommend("item", queries, version=first), 1, expected(1), 10)
    for step in (3, 4):
        cluster.publish(step)
    # All servers removed the version that the client used, so it starts again.
    check(client.recommend("item", queries), 4, expected(4), 10)
    with pytest.raises(VersionGoneError, match="request the newest"):
        client.recommend("item", queries, version=first)


def test_shards_without_a_common_version_are_rejected() -> None:
    cluster = Cluster(2)
    for name in cluster.shards.shards[0]:
        for step in (2, 3):
            cluster.tables[name].publish(step, cluster.part(step, 0))
            cluster.tables[name].refresh()
    with pytest.raises(VersionGoneError, match="no version that all shards keep"):
        cluster.client.recommend("item", QUERIES)


def test_a_failing_replica_is_replaced_and_a_failing_shard_is_an_error() -> None:
    cluster = Cluster(2)
    check(cluster.client.recommend("item", QUERIES), 1, QUERIES, 10)
    down = {each.address for each in cluster.transport.sent if each.method == "Recommend"}
    cluster.transport.fault = lambda send: "cut" if send.address in down else ""
    for _ in range(2):
        check(cluster.client.recommend("item", QUERIES), 1, QUERIES, 10)
    assert cluster.client.metrics.value("failovers_total") >= 2
    down |= set(cluster.shards.shards[1])
    for config in ({}, {"on_failure": "flag"}):
        client = cluster.client_of(cluster.shards, **config)
        with pytest.raises(
            (ReplicasFailedError, DeadlineError), match=r"no replica (replied|returned)"
        ):
            client.recommend("item", {"user": [1, 2, 3, 4]})
    # All or nothing: no part is returned without the rest.
    with pytest.raises((ReplicasFailedError, DeadlineError), match="shard 2: no replica replied"):
        cluster.client.recommend("item", QUERIES)


def test_a_truncated_answer_is_rejected() -> None:
    cluster = Cluster(1)
    cluster.transport.fault = lambda send: (
        "damaged" if send.method == "Recommend" and send.address == "s0r0:1" else ""
    )
    for _ in range(2):
        check(cluster.client.recommend("item", QUERIES), 1, QUERIES, 10)


def test_a_client_with_an_older_shard_map_gets_the_newer_one() -> None:
    cluster = Cluster(3)
    client = cluster.client_of(ShardReplicas((("s0r0:1", "s0r1:1"),), number=0))
    check(client.recommend("item", QUERIES), 1, QUERIES, 10)
    assert {each.address[:2] for each in cluster.transport.sent} == {"s0", "s1", "s2"}


@pytest.mark.parametrize(
    ("queries", "options", "error", "message"),
    [
        (QUERIES, {"table": "itm"}, UnknownTableError, "'itm' is not served; did you mean 'item'"),
        ({"usr": [1]}, {}, UnknownTableError, "'usr' is not served; did you mean 'user'"),
        ({"user": [1], "tag": [1]}, {}, InvalidArgumentError, "one table, found 2 tables"),
        (QUERIES[:, :3], {}, InvalidArgumentError, "3 elements, but rows of table 'item' have 4"),
        ([1, 2, 3, 4], {}, InvalidArgumentError, r"of shape \(q, 4\)"),
        ([[np.nan] * 4], {}, InvalidArgumentError, "finite in float32, found NaN or infinity"),
        (QUERIES, {"k": 0}, InvalidArgumentError, "k must be .*at least 1, found 0"),
        (
            QUERIES,
            {"k": 31},
            InvalidArgumentError,
            r"k: found 31 .* maximum is 30; .*server\.max_k",
        ),
        (QUERIES, {"exclude": [[1]]}, InvalidArgumentError, "for each of 7 queries, found 1"),
        (
            QUERIES,
            {"exclude": [[0.5]] * 7},
            InvalidArgumentError,
            "'item' must be a one-dimensional array of integers",
        ),
        (
            np.ones((9, 4)),
            {},
            InvalidArgumentError,
            r"queries: found 9 .* maximum is 8; .*max_queries",
        ),
    ],
)
def test_wrong_calls_are_rejected_with_the_fix(
    queries: Any, options: dict[str, Any], error: Any, message: str
) -> None:
    cluster = Cluster(2, limits=Limits(max_queries=8, max_k=30))
    asked = {"table": "item", "k": 10, **options}
    with pytest.raises(error, match=message):
        cluster.client.recommend(asked.pop("table"), queries, asked.pop("k"), **asked)


def refused(service: LookupService, message: str, **fields: Any) -> StatusError:
    request = {"table": "item", "queries": as_bytes(np.ones((2, 4), np.float32)), "k": 3, **fields}
    seconds = request.pop("seconds", 1.0)
    with pytest.raises(StatusError, match=message) as caught:
        recommend(service, encode(RecommendRequest(**request)), seconds)
    assert service.admission.bytes_in_flight == 0
    return caught.value


def test_a_server_rejects_requests_that_no_client_sends() -> None:
    service = Cluster(2, limits=Limits(max_bytes=4096)).services["s0r0:1"]
    refused(
        service,
        "7 bytes are not a multiple of a vector of table 'item'; send 16 bytes",
        queries=b"1234567",
    )
    refused(service, "8 bytes per id", num_excluded=b"123")
    counts = as_bytes(np.array([5, -5], np.int64))
    refused(service, "exclude must be", num_excluded=counts)
    huge = as_bytes(np.array([2**62, 2**62], np.int64))
    refused(service, "exclude must be", num_excluded=huge, excluded=bytes(16))
    refused(service, "k must be an integer of at least 1, found -1", k=-1)
    refused(service, "the request has", queries=bytes(4096))
    refused(service, "must have a deadline", seconds=np.inf)
    refused(service, "the deadline passed", seconds=0.0)
    assert refused(service, "version 5 is not kept", version="5").status.value == "NOT_FOUND"
    moved = refused(service, "for shard 1 of 3, but this is shard 1 of 2", shard=0, num_shards=3)
    assert moved.shard_map
    assert service.metrics.value("rejected_total", reason="foreign_shard") == 1
    assert service.metrics.value("recommends_total", code="INVALID_ARGUMENT") >= 4


def test_rows_are_compared_until_the_deadline_and_no_longer(monkeypatch: Any) -> None:
    from sparring_serve import recommendation

    monkeypatch.setattr(recommendation, "_BLOCK_ROWS", 40)
    service = Cluster(1).services["s0r0:1"]
    refusal = refused(service, r"after \d+ rows were compared; send fewer queries", seconds=1e-9)
    assert refusal.status.value == "DEADLINE_EXCEEDED"


def test_a_caller_with_one_server_need_not_name_a_shard() -> None:
    service = Cluster(1).services["s0r0:1"]
    queries = as_bytes(QUERIES.astype(np.float32))
    content = recommend(service, encode(RecommendRequest("item", "", queries, 2)), 1.0)
    answer = decode(RecommendReply, content)
    keys, scores = expected_of(1, QUERIES, 2)
    assert np.frombuffer(answer.ids, np.int64).reshape(-1, 2).tolist() == keys
    assert np.frombuffer(answer.scores, np.float32).reshape(-1, 2).tolist() == scores
    assert answer.version.hash == answer.newest


@pytest.mark.parametrize("num_shards", [1, 3])
def test_both_clients_work_over_grpc(
    kind: str, open_servers: Serve, tmp_path: Path, num_shards: int
) -> None:
    folder = Folder(tmp_path)
    folder.publish_rows({ITEM: rows_of_step(1)["item"], USER: rows_of_step(1)["user"]})
    shards = ShardReplicas((("127.0.0.1:1",),) * num_shards)
    positions = [ShardPosition(shards, each) for each in range(num_shards)]
    addresses = [
        (open_servers(kind, folder, each, max_k=20, metrics_port=0).address,) for each in positions
    ]
    random = np.random.default_rng(1)
    exclude = [random.integers(-60, 260, each * 20) for each in range(len(QUERIES))]
    with LookupClient(addresses, LONG) as client:
        check(client.recommend("item", QUERIES, 20), 1, QUERIES, 20)
        found = client.recommend("item", QUERIES, 20, exclude=exclude)
        check(found, 1, QUERIES, 20, exclude)
        with pytest.raises(InvalidArgumentError, match="maximum is 20"):
            client.recommend("item", QUERIES, 21)

    async def ask() -> Recommendations:
        async with AsyncLookupClient(addresses, LONG) as client:
            return await client.recommend("item", {"user": [3]}, 4)

    check(asyncio.run(ask()), 1, [rows_of_step(1)["user"][3]], 4)


def test_a_call_names_its_shard() -> None:
    cluster = Cluster(3)
    cluster.client.recommend("item", QUERIES)
    sent: list[Send] = [each for each in cluster.transport.sent if each.method == "Recommend"]
    places = [decode(RecommendRequest, each.request) for each in sent]
    assert [(each.shard, each.num_shards) for each in places] == [(0, 3), (1, 3), (2, 3)]
