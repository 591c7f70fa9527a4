"""Rows in place of those that no replica answers: stale, initial, or NaN; each with its status."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring import Normal, Xavier
from sparring.adapter import initial_rows
from sparring.contracts import TableConfig, read_embeddings
from sparring.errors import ConfigError, InvalidArgumentError, StorageIOError
from sparring_serve import (
    ClientConfig,
    LookupClient,
    LookupService,
    RowStatus,
    ShardPosition,
    ShardReplicas,
    read_serving_config,
)
from sparring_serve.client.row_cache import RowCache
from sparring_serve.testing import FaultyTransport, MemoryTables
from sparring_serve.wire.messages import InitialValues

ITEM = TableConfig("item", 4, seed=-3)
USER = TableConfig("user", 2, "float16", initializer=Xavier(2.0), seed=5)
TAG = TableConfig("tag", 3, "int8", initializer=Normal(1.0, 0.5))
TABLES = (ITEM, USER, TAG)
IDS = np.arange(-20, 120)
FRESH, ABSENT, STALE, INITIAL, FAILED = RowStatus


def rows_of_step(step: int, keys: range = range(100)) -> dict[str, Any]:
    return {each.name: {key: [step] * each.dim for key in keys} for each in TABLES}


class Cluster:
    """Three shards of one replica, and a client of them."""

    def __init__(self, **config: Any) -> None:
        self.shards = ShardReplicas((("s0:1",), ("s1:1",), ("s2:1",)))
        self.tables = {f"s{each}:1": MemoryTables(TABLES, rows_of_step(1)) for each in range(3)}
        self.now = 1000.0
        self.transport = FaultyTransport(
            {
                name: LookupService(
                    each, ShardPosition(self.shards, number), clock=lambda: self.now
                )
                for number, (name, each) in enumerate(self.tables.items())
            }
        )
        self.client = LookupClient(
            self.shards,
            ClientConfig(**{"deadline_seconds": 1.0, **config}),
            transport=self.transport,
            clock=self.transport.clock,
        )

    def stop(self, shard: str = "") -> None:
        self.transport.fault = lambda send: "cut" if shard in send.address else ""

    def publish(self, rows: dict[str, Any], at: float) -> None:
        for each in self.tables.values():
            each.publish(2, rows, published=at)
            each.refresh()

    def lost(self, shard: int) -> np.ndarray:
        return self.shards.shard_of(IDS) == shard


def had_row(ids: np.ndarray = IDS) -> np.ndarray:
    return (ids >= 0) & (ids < 100)


def test_all_replicas_that_answer_give_fresh_rows_and_absent_ones() -> None:
    answer = Cluster().client.pull({"item": IDS})
    assert np.array_equal(answer.status["item"], np.where(had_row(), FRESH, ABSENT))
    assert answer.is_complete
    assert not answer.stale_seconds


def test_stale_rows_are_the_last_seen_ones_with_their_age() -> None:
    cluster = Cluster(on_failure="stale")
    cluster.client.pull({"item": IDS})
    # The next version has no rows for half of the keys, and other values for the rest.
    cluster.publish(rows_of_step(2, range(50, 100)), at=990.0)
    repeated = np.concatenate([IDS, IDS[:50]])
    cluster.client.pull({"item": repeated})
    cluster.transport.clock.now += 60
    cluster.now += 60
    cluster.stop("s1")
    answer = cluster.client.pull({"item": repeated})
    lost = np.concatenate([cluster.lost(1), cluster.lost(1)[:50]])
    seen = (repeated >= 50) & (repeated < 100)
    expected = np.where(lost, np.where(seen, STALE, FAILED), np.where(seen, FRESH, ABSENT))
    assert np.array_equal(answer.status["item"], expected)
    assert (answer.rows["item"][lost & seen] == 2).all()
    assert np.isnan(answer.rows["item"][lost & ~seen]).all()
    assert np.array_equal(answer.found["item"], seen)
    ages = answer.stale_seconds["item"]
    assert np.allclose(ages[lost & seen], 70.0, atol=0.1)
    assert np.isnan(ages[~(lost & seen)]).all()
    assert answer.age_seconds == ages[lost & seen].max()
    # Repeated ids are counted once, because they are sent once.
    distinct = np.unique(repeated[lost & seen])
    assert cluster.client.metrics.value("degraded_rows_total", given="stale") == len(distinct)
    # The rows of a recovered shard are fresh again.
    cluster.stop("none")
    assert cluster.client.pull({"item": IDS}).is_complete


def test_rows_older_than_allowed_are_not_returned() -> None:
    cluster = Cluster(on_failure="stale", max_staleness_seconds=1100.0)
    cluster.client.pull({"item": IDS})
    cluster.stop()
    assert (cluster.client.pull({"item": IDS}).status["item"] == STALE).sum() == 100
    cluster.transport.clock.now += 150
    answer = cluster.client.pull({"item": IDS})
    assert (answer.status["item"] == FAILED).all()
    assert np.isnan(answer.rows["item"]).all()
    assert not answer.stale_seconds


def test_a_pull_of_a_named_version_gets_no_stale_rows_and_leaves_none() -> None:
    cluster = Cluster(on_failure="stale")
    old = cluster.client.pull({"item": IDS}).versions[0].hash
    cluster.publish(rows_of_step(2), at=0.0)
    cluster.client.pull({"item": IDS})
    assert (cluster.client.pull({"item": [1]}, version=old).rows["item"] == 1).all()
    cluster.stop()
    assert cluster.client.pull({"item": [1]}, version=old).status["item"].tolist() == [FAILED]
    assert cluster.client.pull({"item": [1]}).rows["item"].tolist() == [[2, 2, 2, 2]]


@pytest.mark.parametrize("table", TABLES, ids=lambda each: each.name)
def test_initial_values_equal_training_bit_by_bit(table: TableConfig) -> None:
    cluster = Cluster(on_failure="initial")
    cluster.client.pull({table.name: [1]})
    cluster.stop("s2")
    answer = cluster.client.pull({table.name: IDS})
    lost = cluster.lost(2)
    expected = np.where(lost, INITIAL, np.where(had_row(), FRESH, ABSENT))
    assert np.array_equal(answer.status[table.name], expected)
    initial = read_embeddings(table, initial_rows(IDS[lost], table))
    assert np.array_equal(answer.rows[table.name][lost], initial)
    assert not answer.found[table.name][lost].any()
    assert cluster.client.metrics.value("degraded_rows_total", given="initial") == lost.sum()


def test_a_stale_row_is_preferred_to_an_initial_value() -> None:
    cluster = Cluster(on_failure="stale_or_initial")
    cluster.client.pull({"item": [1, 2]})
    cluster.stop()
    answer = cluster.client.pull({"item": [1, 50, 2]})
    assert answer.status["item"].tolist() == [STALE, INITIAL, STALE]
    assert np.array_equal(answer.rows["item"][1:2], initial_rows([50], ITEM))


def test_table_metadata_outlive_their_servers() -> None:
    cluster = Cluster(on_failure="initial")
    cluster.stop()
    with pytest.raises(StorageIOError):
        cluster.client.pull({"item": [1]})
    cluster.stop("none")
    cluster.client.pull({"item": [1]})
    cluster.stop()
    with pytest.raises(StorageIOError):
        cluster.client.describe()  # forgets its state, to request again
    assert cluster.client.pull({"item": [1]}).status["item"].tolist() == [INITIAL]


@pytest.mark.parametrize("initial", [InitialValues(), InitialValues("of_next_year", 0.0, 1.0)])
def test_a_server_that_reports_no_initial_values_is_named(
    initial: InitialValues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sparring_serve.testing.memory_tables.describe_initial_values", lambda table: initial
    )
    with pytest.raises(
        InvalidArgumentError, match=r"table 'item': client\.on_failure=initial needs"
    ):
        Cluster(on_failure="initial").client.pull({"item": [1]})
    assert Cluster(on_failure="stale").client.pull({"item": [1]}).is_complete


def test_the_cache_is_bounded_and_never_mixes_up_rows() -> None:
    cache, dice = RowCache(1000), np.random.default_rng(3)
    newest: dict[int, float] = {}
    for number in range(20):
        keys = np.unique(dice.integers(-(2**63), 2**63 - 1, 400))
        rows = np.full((len(keys), 2), float(number), np.float32)
        rows[:, 1] = keys % 1000
        cache.store("item", keys, rows, np.ones(len(keys), np.bool_), number)
        newest |= dict.fromkeys(keys.tolist(), float(number))
    keys = np.array(list(newest), np.int64)
    rows = np.zeros((len(keys), 2), np.float32)
    published = cache.read("item", keys, rows)
    kept = ~np.isnan(published)
    assert 900 < kept.sum() <= 1000
    assert np.array_equal(rows[kept, 1], keys[kept] % 1000)
    assert np.array_equal(rows[kept, 0], [newest[each] for each in keys[kept].tolist()])
    assert np.array_equal(published[kept], rows[kept, 0])
    # Key 0 is in no slot, because the array of slots starts with zeros.
    assert np.isnan(cache.read("item", np.array([0]), np.zeros((1, 2), np.float32))).all()
    assert np.isnan(cache.read("user", np.array([0]), np.zeros((1, 2), np.float32))).all()


@pytest.mark.parametrize(
    ("key", "said"),
    [("on_failure=old", r"client\.on_failure"), ("stale_rows=0", r"client\.stale_rows")],
)
def test_wrong_options_are_rejected_with_their_place(tmp_path: Any, key: str, said: str) -> None:
    path = tmp_path / "serving.yaml"
    path.write_text("client: {deadline_seconds: 1.0}\n")
    with pytest.raises(ConfigError, match=said):
        read_serving_config(path, [f"client.{key}"])
