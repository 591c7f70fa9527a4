"""Decisions of replicas, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import ConfigError, StorageIOError
from sparring_serve import ServingConfig, open_parameter_server
from sparring_serve.parameters.push_log_files import Base
from sparring_serve.replication.owner import shard_key
from sparring_serve.replication.records import (
    ReadState,
    ReplicaOptions,
    ShardState,
    StoreSteps,
)
from sparring_serve.replication.replica import Replica
from sparring_serve.replication.store import MemoryStore
from sparring_serve.wire.messages import LogPosition, Record, ReplicateReply


class Log:
    def __init__(self, epoch: int = 0, position: int = 0) -> None:
        self.end = LogPosition(epoch, position)
        self.base = (Base(""), 0)
        self.is_full = False

    def read(self, position: int) -> list[Record]:
        return [Record(1, b"")] * (self.end.position - position)

    def append(self, records: Sequence[Record]) -> None:
        if not self.is_full:
            self.end = LogPosition(self.end.epoch, self.end.position + len(records))

    def begin_epoch(self, epoch: int) -> None:
        if self.is_full:
            raise StorageIOError("the disk is full")
        self.end = LogPosition(epoch, self.end.position)

    def drop_before(self, position: int) -> None:
        raise NotImplementedError


class World:
    """A store, a clock, and the replicas ``a`` and ``b``."""

    def __init__(self, **logs: Log) -> None:
        self.now, self.store, self.logs = 0.0, MemoryStore(lambda: self.now), logs
        options = ReplicaOptions(1.0)
        self.a, self.b = (
            Replica(own, [other], logs[own], options, lambda: self.now)
            for own, other in (("a", "b"), ("b", "a"))
        )

    def write(self, *state: Any) -> None:
        assert self.store.replace("shard", None, ShardState(*state).encode())

    def tick(self, replica: Replica) -> None:
        self.run(replica.tick())

    def run(self, steps: StoreSteps) -> None:
        result: Any = None
        while True:
            try:
                asked = steps.send(result)
            except StopIteration:
                return
            if isinstance(asked, ReadState):
                result = self.store.read("shard")
            else:
                result = self.store.replace("shard", asked.before, asked.after)

    def exchange(self) -> ReplicateReply:
        request = self.a.request_for("b")
        assert request is not None
        reply = self.b.replicate(request)
        self.a.take_reply("b", request, reply)
        return reply

    @property
    def state(self) -> ShardState:
        value = self.store.read("shard")
        assert value is not None
        return ShardState.decode(value)


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_replica_without_its_log_leaves_the_lead_to_one_in_sync(epoch: int) -> None:
    world = World(a=Log(epoch), b=Log(3, 10))
    world.write(3, "a", ("a", "b"), 5)
    for _ in range(20):
        world.tick(world.a)
        assert not world.a.is_leader
        world.tick(world.b)
        world.now += 0.1
    assert world.b.is_leader


def test_a_leader_without_its_log_knows_that_pushes_may_be_missing() -> None:
    world = World(a=Log(), b=Log())
    world.write(3, "a", ("a",), 5)
    world.tick(world.a)
    assert world.a.is_leader
    assert world.a.has_lost_log


def test_a_replica_that_cannot_write_leaves_the_lead_to_another() -> None:
    world = World(a=Log(3, 10), b=Log(3, 10))
    world.logs["a"].is_full = True
    world.write(3, "a", ("a", "b"), 5)
    with pytest.raises(StorageIOError):
        world.tick(world.a)
    assert not world.a.is_leader
    for _ in range(20):
        world.tick(world.a)
        world.tick(world.b)
        world.now += 0.1
    assert world.b.is_leader


def test_a_follower_joins_while_new_pushes_are_always_ahead_of_it() -> None:
    world = World(a=Log(3, 10), b=Log(3, 10))
    world.write(3, "a", ("a",), 5)
    world.tick(world.a)
    world.exchange()
    for _ in range(10):
        world.now += 0.1
        request = world.a.request_for("b")
        assert request is not None
        reply = world.b.replicate(request)
        # A push is acknowledged between the follower's append and its reply.
        world.logs["a"].append([Record(1, b"")])
        world.a.is_replicated(world.logs["a"].end.position)
        world.a.take_reply("b", request, reply)
        world.tick(world.a)
    assert world.state.in_sync == ("a", "b")


def test_a_follower_that_cannot_append_is_not_in_sync() -> None:
    world = World(a=Log(3, 10), b=Log(3, 10))
    world.write(3, "a", ("a",), 5)
    world.tick(world.a)
    for _ in range(4):
        world.exchange()
    world.tick(world.a)
    assert len(world.state.in_sync) == 2
    world.logs["a"].append([Record(1, b"")])
    world.logs["b"].is_full = True
    for _ in range(8):
        world.now += 0.1
        world.exchange()
        world.tick(world.a)
    assert len(world.state.in_sync) == 1
    assert world.a.is_replicated(11)
    world.logs["b"].is_full = False
    world.exchange()
    world.tick(world.a)
    assert len(world.state.in_sync) == 2


def test_a_follower_leads_at_once_when_its_leader_ends() -> None:
    world = World(a=Log(3, 10), b=Log(3, 10))
    world.write(3, "a", ("a",), 5)
    world.tick(world.a)
    for _ in range(4):
        world.exchange()
    world.tick(world.a)
    assert world.state.in_sync == ("a", "b")
    world.tick(world.b)
    assert not world.b.is_leader
    world.now += 0.8  # the leader has waited for another replica that does not reply
    world.run(world.a.resign())
    assert not world.a.serves()
    world.tick(world.b)
    assert world.b.serves()
    assert not world.b.has_replaced  # which would mean that pushes may be missing


def test_a_leader_without_a_complete_follower_leads_again_after_its_end() -> None:
    world = World(a=Log(3, 10), b=Log(3, 10))
    world.write(3, "a", ("a",), 5)
    world.tick(world.a)
    before = world.state
    world.run(world.a.resign())
    assert world.state == before
    world.tick(world.b)
    assert not world.b.is_leader
    world.tick(world.a)
    assert world.a.is_leader


def test_a_state_of_another_program_is_an_error() -> None:
    world = World(a=Log(), b=Log())
    assert world.store.replace("shard", None, b'{"epoch": 1}')
    with pytest.raises(StorageIOError, match="database of its own"):
        world.tick(world.a)


def test_services_with_equal_relative_folders_have_different_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.add(shard_key("parameters", 0, 1))
        assert shard_key("parameters", 0, 1) == shard_key(
            f"file://{tmp_path / name}/parameters", 0, 1
        )
    assert len(found) == 2
    assert shard_key("s3://bucket/a", 0, 1) != shard_key("s3://bucket/b", 0, 1)


def test_replicas_do_not_share_rows_that_a_storage_keeps(tmp_path: Path) -> None:
    storage = {"backend": "rocksdb", "options": {"path": f"{tmp_path}/rows"}}
    config = ServingConfig.model_validate(
        {
            "shards": [["127.0.0.1:1", "127.0.0.1:2"]],
            "parameters": {
                "tables": {"item": {"dim": 4, "storage": storage}},
                "folders": [f"{tmp_path}/saved"],
                "replication": {"store": "redis://127.0.0.1:1/0"},
            },
        }
    )
    with pytest.raises(ConfigError, match="'item' keeps rows"):
        open_parameter_server(config)
