"""The client over services of this process: division, failures, versions, shard maps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparring.adapter import initial_rows
from sparring.contracts import TableConfig
from sparring.errors import (
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    SparringError,
    UnknownTableError,
)
from sparring_serve import (
    AccessError,
    ClientConfig,
    LookupClient,
    LookupService,
    ReplicasFailedError,
    ShardPosition,
    ShardReplicas,
    StaleRowsError,
    VersionGoneError,
)
from sparring_serve.client.replicas import ReplicaOrder
from sparring_serve.client.splitting import CallLimits, TableKeys, split_keys
from sparring_serve.client.transport import Outcome, Send
from sparring_serve.limits import Limits
from sparring_serve.testing import FaultyTransport, MemoryTables, TransportClock
from sparring_serve.wire.fields import decode
from sparring_serve.wire.messages import PullRequest, RowDtype

from .conftest import rows_of_step

ITEM, USER = TableConfig("item", 4, seed=3), TableConfig("user", 2)


class Cluster:
    """Shards with two replicas, and a client of them; each replica has separate tables."""

    def __init__(self, num_shards: int = 3, *, limits: Limits | None = None, **config: Any) -> None:
        names = tuple(
            tuple(f"s{shard}r{replica}:1" for replica in range(2)) for shard in range(num_shards)
        )
        self.shards = ShardReplicas(names)
        self.tables: dict[str, MemoryTables] = {}
        services = {}
        for shard, replicas in enumerate(names):
            for name in replicas:
                self.tables[name] = MemoryTables([ITEM, USER], rows_of_step(1))
                services[name] = LookupService(
                    self.tables[name],
                    ShardPosition(self.shards, shard),
                    limits or Limits(),
                    clock=lambda: 10.0,
                )
        self.transport = FaultyTransport(services)
        self.client = self.client_of(self.shards, **config)

    def client_of(self, shards: Any, **config: Any) -> LookupClient:
        config = {"deadline_seconds": 1.0, **config}
        return LookupClient(
            shards, ClientConfig(**config), transport=self.transport, clock=self.transport.clock
        )

    def publish(self, step: int, *names: str) -> None:
        for name in names or self.tables:
            self.tables[name].publish(step, rows_of_step(step))
            self.tables[name].refresh()


def check(rows: np.ndarray, found: np.ndarray, ids: np.ndarray, step: int = 1) -> None:
    has_row = (ids >= 0) & (ids < 100)
    assert np.array_equal(found, has_row)
    known = ids[has_row].astype(np.float32)
    expected = np.stack([np.full_like(known, step), known, -known, np.full_like(known, 0.5)], 1)
    assert np.array_equal(rows[has_row], expected)
    assert np.array_equal(rows[~has_row], initial_rows(ids[~has_row], ITEM))


@pytest.mark.parametrize("num_shards", [1, 3, 8])
@pytest.mark.parametrize("call_bytes", [4096, 1 << 20])
def test_a_pull_has_the_rows_of_all_shards_in_the_order_of_ids(
    num_shards: int, call_bytes: int
) -> None:
    cluster = Cluster(num_shards, max_call_bytes=call_bytes)
    ids = np.random.default_rng(1).integers(-50, 2000, 3000)
    answer = cluster.client.pull({"item": ids, "user": ids[:10]})
    check(answer.rows["item"], answer.found["item"], ids)
    assert answer.found["user"].tolist() == [
        0 <= each < 100 and each % 2 == 0 for each in ids[:10].tolist()
    ]
    assert answer.is_complete
    assert answer.version is not None
    assert (answer.version.step, len(answer.versions), answer.age_seconds) == (1, 1, 10.0)
    # Keys are sent once each, although ids repeat.
    sent = sum(len(each.request) for each in cluster.transport.sent if each.method == "Pull")
    assert sent < 8 * (len(np.unique(ids)) + 10) * 1.1


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rows_may_be_sent_in_fewer_bytes(dtype: str) -> None:
    answer = Cluster(row_dtype=dtype).client.pull({"item": [7, 3]})
    assert np.allclose(answer.rows["item"], [[1, 7, -7, 0.5], [1, 3, -3, 0.5]], atol=0.03)


@pytest.mark.parametrize(
    ("stored", "tables", "sent"),
    [
        ({"item": "int8"}, ["item"], RowDtype.INT8),
        ({"item": "int8"}, ["item", "user"], RowDtype.FLOAT32),
        ({"item": "int8", "user": "int8"}, ["item", "user"], RowDtype.INT8),
        ({}, ["item"], RowDtype.FLOAT32),
    ],
)
@pytest.mark.parametrize("has_versions", [True, False])
def test_rows_are_sent_as_int8_if_they_are_stored_so(
    stored: dict[str, str], tables: list[str], sent: RowDtype, *, has_versions: bool
) -> None:
    cluster = Cluster()
    for each in cluster.tables.values():
        shapes = {
            name: replace(shape, dtype=stored.get(name, "float32"))
            for name, shape in each.shapes().items()
        }
        each.shapes = lambda found=shapes: found  # type: ignore[method-assign,misc]
        if not has_versions:  # as tables that are trained
            version = replace(each.versions()[0], hash="")
            each.versions = lambda found=version: [found]  # type: ignore[method-assign,misc]
    cluster.client.pull({each: [7] for each in tables})
    last = cluster.transport.sent[-1].request
    assert decode(PullRequest, last).row_dtype == (sent if has_versions else RowDtype.FLOAT32)


def test_rows_of_keys_without_one_may_be_zeros() -> None:
    for missing in ("zero", "only_found"):
        answer = Cluster().client.pull({"item": [7, -1]}, missing=missing)
        assert answer.rows["item"].tolist() == [[1, 7, -7, 0.5], [0, 0, 0, 0]]
        assert answer.found["item"].tolist() == [True, False]


def test_an_empty_pull_has_empty_rows() -> None:
    answer = Cluster().client.pull({"item": [], "user": [2]})
    assert answer.rows["item"].shape == (0, 4)
    assert answer.rows["user"].tolist() == [[1, 2]]
    assert Cluster().client.pull({}).rows == {}


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ({"item": [1.5]}, "integers"),
        ({"item": [[1]]}, "shape .1, 1."),
        ({"item": [2**64]}, "integers|to an array"),
        ({"item": np.array([2**63], np.uint64)}, "int64"),
        ({"itm": [1]}, "did you mean 'item'"),
    ],
)
def test_wrong_ids_are_rejected_before_anything_is_sent(ids: Any, said: str) -> None:
    cluster = Cluster()
    cluster.client.pull({"item": [1]})
    before = len(cluster.transport.sent)
    with pytest.raises(InvalidArgumentError, match=said):
        cluster.client.pull(ids)
    assert len(cluster.transport.sent) == before


def test_other_wrong_arguments_are_rejected() -> None:
    client = Cluster().client
    with pytest.raises(InvalidArgumentError, match="missing must be"):
        client.pull({"item": [1]}, missing="none")
    for wrong in (0, 601, float("nan"), "x", True):
        with pytest.raises(InvalidArgumentError, match="must be a number above 0 and at most 600"):
            client.pull({"item": [1]}, deadline_seconds=wrong)
    with pytest.raises(InvalidArgumentError, match="shards: must be 1 to 4096"):
        LookupClient([["a:1"], []])
    client.close()
    with pytest.raises(ClosedError, match="create a new one"):
        client.pull({"item": [1]})


@pytest.mark.parametrize("fault", ["cut", "hang", "lost", "damaged", "busy"])
def test_a_failing_replica_is_hidden_if_another_answers(fault: str) -> None:
    cluster = Cluster()
    cluster.transport.fault = lambda send: fault if "r0" in send.address else ""
    ids = np.arange(-20, 120)
    for _ in range(3):
        answer = cluster.client.pull({"item": ids})
        check(answer.rows["item"], answer.found["item"], ids)
    if fault != "busy":
        # It is no longer called first.
        sent = [each.address for each in cluster.transport.sent[-3:]]
        assert all("r1" in each for each in sent)


def test_a_patient_client_waits_for_restarting_replicas() -> None:
    cluster = Cluster()
    ids = np.arange(-20, 120)
    cluster.client.pull({"item": ids})
    cluster.transport.fault = lambda send: "" if send.waits else "cut"
    answer = cluster.client.pull({"item": ids})
    check(answer.rows["item"], answer.found["item"], ids)
    # A client that accepts flagged rows does not wait for them.
    flagging = cluster.client_of(cluster.shards, on_failure="flag")
    cluster.transport.fault = lambda send: ""
    flagging.pull({"item": ids})
    cluster.transport.fault = lambda send: "" if send.waits else "cut"
    begin = cluster.transport.clock.now
    assert not flagging.pull({"item": ids}).answered["item"].any()
    assert cluster.transport.clock.now - begin < 0.1


def test_a_patient_client_waits_again_if_the_awaited_connection_is_lost() -> None:
    cluster = Cluster()
    cluster.client.pull({"item": [1]})
    lost: set[str] = set()

    def lose_the_first_that_waits(send: Send) -> str:
        if send.method != "Pull" or send.address in lost:
            return ""
        if send.waits:
            lost.add(send.address)
        return "lost"

    cluster.transport.fault = lose_the_first_that_waits
    ids = np.arange(-20, 120)
    answer = cluster.client.pull({"item": ids})
    check(answer.rows["item"], answer.found["item"], ids)
    assert len(lost) == 6
    # Servers without another answer are called again, after pauses, until the deadline.
    cluster.transport.fault = lambda _: "lost"
    begin, before = cluster.transport.clock.now, len(cluster.transport.sent)
    with pytest.raises(ReplicasFailedError, match="check the logs of these servers"):
        cluster.client.pull({"item": ids})
    assert 0.9 < cluster.transport.clock.now - begin <= 1.001
    assert len(cluster.transport.sent) - before < 6 * 30


def test_a_recovered_replica_is_called_again() -> None:
    order, replicas = ReplicaOrder(seed=1), ("a:1", "b:1")
    home = order.of(replicas, 0.0)[0]
    now = 0.0
    for pause in (0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0):
        order.note_failure(home, now)
        assert order.of(replicas, now + 0.99 * pause)[0] != home
        now += pause
        assert order.of(replicas, now)[0] == home
    order.note_success(home)
    order.note_failure(home, now)
    assert order.of(replicas, now + 0.25)[0] == home


@pytest.mark.parametrize(
    ("fault", "error"),
    [("cut", ReplicasFailedError), ("hang", DeadlineError), ("busy", ReplicasFailedError)],
)
def test_a_shard_without_replicas_raises_within_the_deadline(
    fault: str, error: type[SparringError]
) -> None:
    cluster = Cluster()
    cluster.client.pull({"item": [1]})
    cluster.transport.fault = lambda send: fault if "s1" in send.address else ""
    begin = cluster.transport.clock.now
    with pytest.raises(error, match=r"shard 2: no replica replied .s1r") as caught:
        cluster.client.pull({"item": np.arange(100)})
    assert cluster.transport.clock.now - begin <= 1.001
    assert sorted(caught.value.reasons) == ["s1r0:1", "s1r1:1"]
    if error is DeadlineError:
        assert "within 1 s; increase client.deadline_seconds" in str(caught.value)


def test_a_shard_without_replicas_is_flagged_row_by_row() -> None:
    cluster = Cluster(on_failure="flag")
    cluster.transport.fault = lambda send: "hang" if "s1" in send.address else ""
    ids = np.arange(-20, 120)
    answer = cluster.client.pull({"item": ids})
    lost = cluster.shards.shard_of(ids) == 1
    assert 10 < lost.sum() < 90
    assert np.array_equal(answer.answered["item"], ~lost)
    assert not answer.is_complete
    assert np.isnan(answer.rows["item"][lost]).all()
    assert not answer.found["item"][lost].any()
    check(answer.rows["item"][~lost], answer.found["item"][~lost], ids[~lost])
    assert cluster.client.metrics.value("degraded_rows_total") == lost.sum()
    cluster.transport.fault = lambda send: "cut"
    answer = cluster.client.pull({"item": ids})
    assert (answer.version, answer.answered["item"].any()) == (None, False)


def test_1000_random_faults_give_the_rows_or_an_error_in_time() -> None:
    dice, clock = random.Random(11), TransportClock()
    outcomes = {"rows": 0, "flagged": 0, "raised": 0}
    clusters = [Cluster(on_failure="raise"), Cluster(on_failure="flag", consistency="one_version")]
    ids = np.arange(-20, 120)
    for number in range(1000):
        cluster = clusters[number % 2]
        clock = cluster.transport.clock
        share = dice.choice([0.1, 0.5, 0.9])
        faults = ["cut", "hang", "lost", "damaged", "busy"]
        cluster.transport.fault = (
            lambda send: dice.choice(faults) if dice.random() < share else ""  # noqa: B023
        )
        begin = clock.now
        try:
            answer = cluster.client.pull({"item": ids})
        except (DeadlineError, ReplicasFailedError):
            outcomes["raised"] += 1
        else:
            answered = answer.answered["item"]
            check(answer.rows["item"][answered], answer.found["item"][answered], ids[answered])
            assert np.isnan(answer.rows["item"][~answered]).all()
            outcomes["rows" if answered.all() else "flagged"] += 1
        assert clock.now - begin <= 1.1
    assert min(outcomes.values()) > 50, outcomes


def test_one_version_covers_all_shards_during_a_refresh() -> None:
    cluster = Cluster(3, consistency="one_version")
    newest = Cluster(3)
    ids = np.arange(100)
    for each in (cluster, newest):
        each.client.pull({"item": ids})
        each.publish(2, "s0r0:1", "s0r1:1")
    answer = cluster.client.pull({"item": ids})
    assert [each.step for each in answer.versions] == [1]
    mixed = newest.client.pull({"item": ids})
    assert [each.step for each in mixed.versions] == [1, 2]
    for name in ("s1r0:1", "s1r1:1", "s2r0:1", "s2r1:1"):
        cluster.publish(2, name)
    # Learned from the answers to the next pull.
    steps = [cluster.client.pull({"item": ids}).versions[0].step for _ in range(2)]
    assert steps == [1, 2]


def test_a_client_continues_if_its_version_was_removed() -> None:
    cluster = Cluster(3, consistency="one_version")
    ids = np.arange(100)
    cluster.client.pull({"item": ids})
    for step in (2, 3, 4):
        cluster.publish(step)
    answer = cluster.client.pull({"item": ids})
    check(answer.rows["item"], answer.found["item"], ids, step=4)
    with pytest.raises(VersionGoneError, match="is not kept"):
        cluster.client.pull({"item": ids}, version=f"{1:032x}")
    assert cluster.client.pull({"item": ids}, version=f"{3:032x}").versions[0].step == 3


def test_shards_without_a_common_version_are_named() -> None:
    cluster = Cluster(2, consistency="one_version")
    for step in (2, 3):
        cluster.publish(step, "s0r0:1", "s0r1:1")
    with pytest.raises(VersionGoneError, match="there is no version that all shards keep"):
        cluster.client.pull({"item": np.arange(100)})


def test_a_client_with_an_old_map_gets_the_newer_one() -> None:
    cluster = Cluster(3)
    client = cluster.client_of([["s0r0:1", "s0r1:1"]])
    ids = np.arange(-20, 120)
    answer = client.pull({"item": ids})
    check(answer.rows["item"], answer.found["item"], ids)
    asked = len(cluster.transport.sent)
    client.pull({"item": ids})
    assert len(cluster.transport.sent) == asked + 3


def test_a_client_with_another_map_of_the_same_number_gets_an_error() -> None:
    cluster = Cluster(3)
    client = cluster.client_of(ShardReplicas((("s0r0:1",), ("s1r0:1",)), number=1))
    with pytest.raises(
        InvalidArgumentError, match="shard map 1 of 3 shards, and this client has 1 of 2"
    ):
        client.pull({"item": np.arange(100)})


def test_rows_that_are_too_old_are_rejected() -> None:
    with pytest.raises(StaleRowsError, match="rows are 10 s old, and max_staleness_seconds is 5"):
        Cluster(max_staleness_seconds=5.0).client.pull({"item": [1]})


def test_a_changed_dim_is_rejected_with_both() -> None:
    cluster = Cluster(1)
    cluster.client.pull({"item": [1]})
    for service in cluster.transport.services.values():
        service.tables = MemoryTables([TableConfig("item", 8)], {})
    with pytest.raises(InvalidArgumentError, match="has dim 8 now, and had 4"):
        cluster.client.pull({"item": [1]})


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("UNAUTHENTICATED", AccessError),
        ("PERMISSION_DENIED", AccessError),
        ("INVALID_ARGUMENT", InvalidArgumentError),
        ("UNIMPLEMENTED", OSError),
    ],
)
def test_calls_that_every_replica_would_reject_are_not_repeated(status: str, error: Any) -> None:
    class Refusing:
        sent = 0

        def exchange(self, sends: list[Send]) -> list[Outcome]:
            self.sent += len(sends)
            return [Outcome(None, status, "because") for _ in sends]

        def close(self) -> None: ...

    transport = Refusing()
    with pytest.raises(error, match="because"):
        LookupClient(["a:1", "b:1"], transport=transport).pull({"item": [1]})
    assert transport.sent == 1


def test_calls_have_at_most_the_ids_that_servers_accept() -> None:
    cluster = Cluster(1, limits=Limits(max_ids=7))
    ids = np.arange(100)
    answer = cluster.client.pull({"item": ids})
    check(answer.rows["item"], answer.found["item"], ids)
    pulls = [each for each in cluster.transport.sent if each.method == "Pull"]
    assert len(pulls) == -(-100 // 7)


def test_each_key_is_in_one_call_of_its_shard() -> None:
    random_ids = np.random.default_rng(5)
    for num_shards in (1, 2, 5):
        shards = ShardReplicas(tuple((f"a{each}:1",) for each in range(num_shards)))
        tables = [
            TableKeys("item", random_ids.permutation(1000) - 500, 256),
            TableKeys("user", np.empty(0, np.int64), 8),
            TableKeys("wide", random_ids.permutation(30), 5000),
        ]
        calls = split_keys(tables, shards, CallLimits(4096, 100))
        seen = [np.zeros(len(each.keys), np.int64) for each in tables]
        for call in calls:
            num_bytes = 0
            for part in call.parts:
                seen[part.number][part.positions] += 1
                assert np.array_equal(tables[part.number].keys[part.positions], part.keys)
                assert (shards.shard_of(part.keys) == call.shard).all()
                num_bytes += len(part.keys) * tables[part.number].row_bytes
            assert num_bytes <= 4096 or [len(part.keys) for part in call.parts] == [1]
            assert sum(len(part.keys) for part in call.parts) <= 100
        assert all((each == 1).all() for each in seen)


def test_a_table_that_was_added_later_is_found() -> None:
    cluster = Cluster(1)
    cluster.client.pull({"item": [1]})
    with pytest.raises(UnknownTableError):
        cluster.client.pull({"genre": [1]})
    for service in cluster.transport.services.values():
        service.tables = MemoryTables([ITEM, TableConfig("genre", 2)], {"genre": {1: [5, 6]}})
    assert cluster.client.pull({"genre": [1]}).rows["genre"].tolist() == [[5, 6]]
