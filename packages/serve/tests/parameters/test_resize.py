"""Partitions move between shards while clients push: each push is applied to each key exactly once.

The file is long because all tests share the simulated servers, clients and store.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring.contracts import partition
from sparring.errors import ConfigError, DeadlineError, StorageIOError, UnsupportedError
from sparring_cli import ExitCode, main
from sparring_redis.testing.server import RedisServer, free_port, redis_server_missing
from sparring_serve import (
    ParameterClient,
    ParametersConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
    ShardRestartedError,
    open_parameter_server,
)
from sparring_serve.client.transport import Outcome, Send
from sparring_serve.parameters.push_log import PushLog
from sparring_serve.parameters.push_log_files import Base, read_partitions
from sparring_serve.parameters.push_steps import PushFailedError
from sparring_serve.parameters.push_window import WIDTH, PushWindows, Token
from sparring_serve.parameters.service import ParameterService
from sparring_serve.parameters.shard import ParameterShard
from sparring_serve.replication.store import MemoryStore
from sparring_serve.resizing.map_store import MapStore
from sparring_serve.resizing.resize import ResizeError, _leave, resize
from sparring_serve.server.lookup_server import LookupServer
from sparring_serve.service import LookupService
from sparring_serve.status import StatusError
from sparring_serve.testing import FaultyTransport
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import MovedPart, MoveRequest, MoveStage

TABLES: dict[str, Any] = {
    "item": {"dim": 2, "update_method": "sgd", "hyper": {"lr": 1.0}, "initializer": "zeros"},
    "user": {"dim": 3, "update_method": "adam", "hyper": {"lr": 0.01}, "seed": 3},
}
NUM_IDS = 400


class Killed(BaseException):
    """Ends the call in progress of a server, which is killed."""


class Server:
    """One server of the simulation, with its push log on a disk."""

    def __init__(self, world: World, shard: int) -> None:
        self.world, self.shard, self.is_dead = world, shard, False
        config = world.config
        store = StoreOf(self)
        shards = store.renumber(world.map(shard + 1), shard)
        position = ShardPosition(shards, shard)
        self.tables = ParameterShard(config, position, can_move=True)
        self.tables.began_partitions = read_partitions(config.push_log_folder, shard)
        self.tables.start()
        lookups = LookupService(self.tables, position, parameters=self.tables.describe())
        self.transport = FaultyTransport(world.services, self._fault, world.clock)
        self.service = ParameterService(self.tables, lookups, self.transport, store)
        self.service.resume()

    def check_alive(self) -> None:
        if self.is_dead:
            raise Killed

    def _fault(self, send: Send) -> str:
        self.check_alive()
        return self.world.before_send(self, send)


class StoreOf(MapStore):
    """The map as a server sees it, which may be killed before or after it changes the map."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.world.store, "map")
        self._server = server

    def close(self) -> None:
        """Does nothing: the store of the simulation remains."""

    def replace(self, before: ShardReplicas | None, after: ShardReplicas) -> bool:
        server, world = self._server, self._server.world
        server.check_alive()
        event = world.draw.random() if world.has_faults else 1.0
        if event < 0.1:
            world.kill(server)
        if event < 0.2:
            raise StorageIOError("the store cannot be reached")
        is_replaced = super().replace(before, after)
        if event < 0.3:
            world.kill(server)
        if event < 0.4:
            raise StorageIOError("the reply of the store was lost")
        return is_replaced


class World:
    """Servers, clients and a store in one thread, with faults at every message."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.store = MemoryStore()
        self.config = ParametersConfig.model_validate(
            {"tables": TABLES, "folders": [str(folder / "saved")], "max_clients": 8}
        )
        self.services: dict[str, ParameterService] = {}
        self.has_faults = False
        self.pushes_in_moves = True
        self.transport = FaultyTransport(self.services, self._client_fault)
        self.clock = self.transport.clock
        self.servers: dict[int, Server] = {}
        self.expected: Counter[int] = Counter()
        self.pending: list[tuple[Token, np.ndarray]] = []
        self.killed: list[Server] = []
        self.num_kills = 0
        self._is_nested = False
        self.cut: set[str] = set()
        """Servers that do not receive the current push."""
        for shard in range(3):
            self.map_size = 3
            self.start(shard)
        self.clients = [self.client() for _ in range(3)]

    def map(self, num_shards: int) -> ShardReplicas:
        num_shards = max(num_shards, 3)
        return ShardReplicas(tuple((f"shard:{each}",) for each in range(num_shards)))

    def client(self) -> ParameterClient:
        return ParameterClient(self.map(3), transport=self.transport, clock=self.clock)

    def start(self, shard: int) -> None:
        server = None
        while server is None:
            with suppress(StorageIOError, Killed):
                has_faults, self.has_faults = self.has_faults, False
                try:
                    server = Server(self, shard)
                finally:
                    self.has_faults = has_faults
        self.servers[shard] = server
        self.services[f"shard:{shard}"] = server.service

    def kill(self, server: Server) -> None:
        """Keeps what the push log contains now, as a killed process does."""
        server.is_dead = True
        self.num_kills += 1
        self.killed.append(server)
        self.services.pop(f"shard:{server.shard}")
        log = self.config.push_log_folder
        copy = log.with_name(f"killed-{server.shard}")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(log, copy)
        raise Killed

    def restart_killed(self) -> None:
        for server in self.killed:
            with suppress(Killed):
                server.service.close()
            server.tables.close()
            log, stem = self.config.push_log_folder, f"shard-{server.shard + 1:04d}"
            copy = log.with_name(f"killed-{server.shard}")
            for each in log.glob(f"{stem}*"):
                each.unlink()
            for each in copy.glob(f"{stem}*"):
                shutil.copy(each, log)
        killed, self.killed = self.killed, []
        for server in killed:
            self.start(server.shard)

    def before_send(self, server: Server, send: Send) -> str:
        """Called for each message of a move: pushes, and draws a fault."""
        if self.pushes_in_moves and not self._is_nested:
            self._is_nested = True
            try:
                for _ in range(self.draw.randrange(3)):
                    self.push(deadline_seconds=0.2)
                if self.draw.random() < 0.3:
                    self.retry()
            finally:
                self._is_nested = False
        if not self.has_faults:
            return ""
        event = self.draw.random()
        if event < 0.01:
            self.kill(server)
        target = next((each for each in self.servers.values() if self._is_at(each, send)), None)
        if event < 0.02 and target is not None and not target.is_dead:
            with suppress(Killed):
                self.kill(target)
            return "cut"
        return {2: "cut", 3: "lost"}.get(int(event * 100), "")

    def _is_at(self, server: Server, send: Send) -> bool:
        return send.address == f"shard:{server.shard}"

    def _client_fault(self, send: Send) -> str:
        if send.method != "Push":
            return ""
        if send.address in self.cut:
            return "cut"
        return self.draw.choices(["", "lost"], [9, 1])[0] if self.has_faults else ""

    def push(self, deadline_seconds: float = 5.0) -> None:
        client = self.draw.choice(self.clients)
        ids = np.array(self.draw.sample(range(NUM_IDS), self.draw.randrange(1, 40)))
        self.expected.update(ids.tolist())
        if self.draw.random() < 0.5:
            self.cut = {f"shard:{self.draw.randrange(len(self.servers))}"}
        try:
            client.push(self._gradients(ids), wait="applied", deadline_seconds=deadline_seconds)
        except PushFailedError as error:
            self.pending.append((error.token, ids))
        except DeadlineError:  # nothing was sent
            self.expected.subtract(ids.tolist())
        finally:
            self.cut = set()

    def retry(self, deadline_seconds: float = 0.5) -> None:
        pending, self.pending = self.pending, []
        for token, ids in pending:
            try:
                self.draw.choice(self.clients).push(
                    self._gradients(ids), wait="applied", token=token,
                    deadline_seconds=deadline_seconds,
                )  # fmt: skip
            except (PushFailedError, DeadlineError):
                self.pending.append((token, ids))

    def _gradients(self, ids: np.ndarray) -> dict[str, Any]:
        return {name: (ids, np.ones((len(ids), each["dim"]))) for name, each in TABLES.items()}

    def resize(self, num_shards: int) -> None:
        for shard in range(num_shards):
            if shard not in self.servers:
                self.start(shard)
        maps = MapStore(self.store, "map")
        for _ in range(100):
            try:
                resize(self.map(num_shards), maps, Coordinator(self))
                break
            except (ResizeError, Killed):
                self.restart_killed()
        else:
            raise AssertionError("the resize did not end")
        self.restart_killed()

    def check(self) -> None:
        self.has_faults = False
        for _ in range(3):
            self.retry(deadline_seconds=30)
        assert not self.pending
        ids = np.arange(NUM_IDS)
        with self.client() as client:
            rows = client.pull({"item": ids}).rows["item"]
        expected = np.array([self.expected[each] for each in range(NUM_IDS)])
        np.testing.assert_array_equal(rows[:, 0], -expected)
        owners = MapStore(self.store, "map").read().owners
        keys = []
        for shard, server in self.servers.items():
            found = [each.keys for each in server.tables._storages["item"].scan()]
            found = np.concatenate([np.empty(0, np.int64), *found])
            assert (owners[partition(found)] == shard).all(), f"shard {shard + 1} has other rows"
            keys.append(found)
        assert len(np.concatenate(keys)) == np.count_nonzero(expected)

    def close(self) -> None:
        self.restart_killed()
        for each in self.clients:
            each.close()
        for server in self.servers.values():
            server.service.close()
            server.tables.close()


class Coordinator:
    """Transport of the command, which learns that a server was killed from a lost connection."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._transport = FaultyTransport(world.services, clock=world.clock)

    def exchange(self, sends: list[Send]) -> list[Outcome]:
        try:
            outcomes = list(self._transport.exchange(sends))
        except Killed:
            outcomes = [Outcome(None, "UNAVAILABLE", "connection reset")]
        self._world.restart_killed()
        return outcomes

    def pause(self, seconds: float) -> None:
        self._world.clock.now += seconds


@pytest.mark.parametrize(
    "seed",
    [
        0,
        pytest.param(1, marks=pytest.mark.slow),
        *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3)),
    ],
)
def test_moves_with_faults_apply_each_push_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 0 has no faults."""
    # Pushes and moves are in one thread here, so a push would always wait for this time.
    monkeypatch.setattr("sparring_serve.resizing.moves._CLOSED_SECONDS", 0.001)
    world = World(tmp_path, seed)
    try:
        for _ in range(30):
            world.push(deadline_seconds=0.2)
        world.has_faults = seed > 0
        for num_shards in (5, 2):
            world.resize(num_shards)
            world.push()
        world.check()
    finally:
        world.close()


needs_redis = pytest.mark.skipif(redis_server_missing() is not None, reason="needs redis-server")


class Service:
    """Servers over gRPC in this process, with the map in Redis."""

    def __init__(self, folder: Path, store: str) -> None:
        self._folder, self._store = folder, store
        self._addresses = [[f"127.0.0.1:{free_port()}"] for _ in range(3)]
        self.servers: dict[int, LookupServer] = {}

    def settings(self, num_shards: int, **parameters: Any) -> dict[str, Any]:
        given = {"tables": TABLES, "folders": [str(self._folder / "saved")], **parameters}
        given.setdefault("replication", {"store": self._store})
        return {"shards": self._addresses[:num_shards], "parameters": given}

    def config(self, num_shards: int) -> ServingConfig:
        return ServingConfig.model_validate(self.settings(num_shards))

    def start(self, shard: int, num_shards: int) -> None:
        self.servers[shard] = open_parameter_server(self.config(num_shards), shard=shard)

    def resize(self, settings: dict[str, Any], *options: str) -> int:
        """Runs `sparring resize`; returns its exit code."""
        file = self._folder / "parameters.yaml"
        file.write_text(json.dumps(settings))
        return main(["resize", str(file), "--pause-seconds", "0", "--json", *options])


@needs_redis
def test_servers_gain_and_lose_a_shard_and_restart_with_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.arange(300)
    gradients = {name: (ids, np.ones((300, each["dim"]))) for name, each in TABLES.items()}
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path)  # lists of snapshots resolve links
    with RedisServer() as redis:
        service = Service(linked, redis.url)
        try:
            for shard in range(2):
                service.start(shard, 2)
            client = ParameterClient(service.config(2).shard_map)
            client.push(gradients, wait="applied", deadline_seconds=60)
            client.save("before")
            service.start(2, 3)
            for num_pushes, num_shards in enumerate((3, 2), start=2):
                assert service.resize(service.settings(num_shards), "--no-save") == 0
                printed = json.loads(capsys.readouterr().out)
                assert (printed["shards"], printed["snapshot"]) == (num_shards, None)
                assert 0 < printed["rows"] < 600
                client.push(gradients, wait="applied", deadline_seconds=60)
                # Without a save, the rows are in the snapshot of two shards and in the push logs.
                for shard, server in list(service.servers.items()):
                    server.close()
                    service.start(shard, max(num_shards, shard + 1))
                rows = client.pull({"item": ids}, deadline_seconds=60).rows["item"]
                np.testing.assert_array_equal(rows, -num_pushes)
                rows = client.save(f"after-{num_shards}").rows
                assert rows == {"item": 300, "user": 300}
                client.load(f"after-{num_shards}")
                rows = client.pull({"item": ids}, deadline_seconds=60).rows["item"]
                np.testing.assert_array_equal(rows, -num_pushes)
            assert service.resize(service.settings(2)) == 0
            printed = json.loads(capsys.readouterr().out)
            assert (printed["rows"], Path(printed["snapshot"]).exists()) == (0, True)
            alone = service.settings(3, replication=None)
            swapped = service.settings(3)
            swapped["shards"] = swapped["shards"][::-1]
            for wrong, message in (
                (alone, "set parameters.replication.store"),
                (swapped, "the first 2 shards must stay the same"),
            ):
                assert service.resize(wrong) == ExitCode.INVALID
                assert message in " ".join(capsys.readouterr().err.split())
            client.close()
        finally:
            for each in service.servers.values():
                each.close()


def test_requests_that_cannot_be_resized_raise_one_line(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    transport, maps = Coordinator(world), MapStore(world.store, "map")
    try:
        with pytest.raises(ConfigError, match="the first 1 shards must stay the same"):
            resize(ShardReplicas((("other:1",),)), maps, transport)
        with pytest.raises(ResizeError, match="shard 4 at shard:3 does not answer"):
            resize(world.map(4), maps, transport)
        with pytest.raises(ConfigError, match="has no shard map"):
            resize(world.map(4), MapStore(MemoryStore(), "map"), transport)
        followers = ShardReplicas((*world.map(3).shards, ("shard:3", "other:3")))
        with pytest.raises(UnsupportedError, match="followers do not receive moved rows"):
            resize(followers, maps, transport)
        assert maps.read().num_shards == 3
    finally:
        world.close()


def test_a_service_with_followers_rejects_moves(tmp_path: Path) -> None:
    position = ShardPosition(ShardReplicas((("a", "b"), ("c", "d"))))
    tables = ParameterShard(
        ParametersConfig.model_validate({"tables": TABLES, "folders": [str(tmp_path / "saved")]}),
        position,
    )
    lookups = LookupService(tables, position, parameters=tables.describe())
    service = ParameterService(tables, lookups, FaultyTransport({}))
    service.resume()
    try:
        for request, method in (
            (MoveRequest(0, 1, 1), "Move"),
            (MovedPart(begin=0, end=1), "MovePart"),
        ):
            with pytest.raises(StatusError, match="resize: this s"):
                service.methods()[method][1](encode(request), 30.0)
        assert service.shard.steps == 0
    finally:
        service.close()
        tables.close()


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1)])
def test_pushes_before_a_change_of_replication_are_not_lost_silently(
    tmp_path: Path, before: int, after: int
) -> None:
    lost = []
    for num_shards in (before, after):
        log = PushLog(tmp_path, 0, num_shards, 1 << 20, 0.0)
        lost.append(log.resume(Base(""), lambda _: None).lost)
        log.append(b"push")
        log.close()
    assert not lost[0]
    assert "contains 1 pushes" in lost[1]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Three shards with rows, and no faults."""
    monkeypatch.setattr("sparring_serve.resizing.moves._CLOSED_SECONDS", 0)
    world = World(tmp_path, 0)
    world.pushes_in_moves = False
    for _ in range(10):
        world.push()
    yield world
    world.close()


def _move(world: World) -> bytes:
    """Moves the first partitions from shard 1 to shard 2."""
    request = encode(MoveRequest(0, 512, 1))
    return world.servers[0].service.moves.move(request, 30)


def test_a_source_whose_log_fails_accepts_no_pushes_to_partitions_that_moved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.servers[0].service._push_log

    def fail(_: bytes) -> None:
        raise StorageIOError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(log, "append_change", fail)
        with pytest.raises(StatusError, match="the disk is full"):
            _move(world)
    for _ in range(5):
        world.push()
    # The partitions have left since, but their rows are erased, and a save is possible, only later.
    moves = world.servers[0].service.moves
    with pytest.raises(StatusError, match="a resize is moving rows"):
        moves.check_idle(0)
    moves.move(encode(MoveRequest(is_settled=True)), 30)
    moves.check_idle(0)
    world.check()


def test_rows_are_on_the_disk_of_the_target_before_pushes_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, log = world.servers[0].service.moves, world.servers[1].service._push_log
    synced = []
    monkeypatch.setattr(log, "sync", lambda: synced.append(bool(source._closed.any())))
    _move(world)
    assert synced == [False]


def test_calls_do_not_wait_until_rows_that_moved_are_erased(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = world.servers[0].service.moves
    erase = moves._rows.erase_left
    seen: list[Any] = []

    def erase_later(begin: int, end: int) -> None:
        if not seen:
            # A client with an older map calls in the meantime, and somebody saves.
            call = threading.Thread(target=moves.read_map, daemon=True)
            call.start()
            call.join(30)
            seen.append(call.is_alive())
            with pytest.raises(StatusError, match="a resize is moving rows"):
                moves.check_idle(0)
        erase(begin, end)

    monkeypatch.setattr(moves._rows, "erase_left", erase_later)
    _move(world)
    assert seen == [False]
    moves.check_idle(0)
    world.check()


def test_rows_are_not_dropped_while_the_source_replaces_the_map(world: World) -> None:
    source, target = world.servers[0].service.moves, world.servers[1].service.moves
    replace_map = source._replace_map

    def replace_later(*given: Any) -> ShardReplicas:
        # Another command starts, or goes back.
        target.move(encode(MoveRequest(is_settled=True)), 30)
        return replace_map(*given)

    source._replace_map = replace_later
    with pytest.raises(StatusError, match="the shard map changed during the move"):
        _move(world)
    world.check()


def test_all_keys_are_checked_after_a_push_has_waited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring_serve.resizing.moves._CLOSED_SECONDS", 1)
    service = world.servers[0].service
    moves, ids = service.moves, np.arange(500)
    first, second = ids[service.lookups.position.shards.shard_of(ids) == 0][:2]
    pushed = [SimpleNamespace(table="item", ids=np.array([each])) for each in (first, second)]
    of_first, of_second = (int(partition(each.ids)[0]) for each in pushed)
    refused: list[StatusError] = []

    def check() -> None:
        with service._lock:
            try:
                moves.check(10, pushed)
            except StatusError as error:
                refused.append(error)

    moves._closed[of_second] = True
    waiting = threading.Thread(target=check)
    waiting.start()
    end = time.monotonic() + 30
    while not moves._opened._waiters and time.monotonic() < end:
        time.sleep(0.001)
    with service._lock:
        moves._closed[of_second], moves._closed[of_first] = False, True
        moves._opened.notify_all()
    waiting.join()
    assert [each.reason for each in refused] == ["moving"]
    moves._closed[of_first] = False


def test_rows_that_do_not_fit_change_neither_the_log_nor_the_tables(world: World) -> None:
    target = world.servers[1].service
    begin = MovedPart(MoveStage.BEGIN, "move", 0, 512)
    target.moves.move_part(encode(begin), 30)
    keys = np.array([each for each in range(500) if partition(np.array([each]))[0] < 512][:1])
    wrong = [
        replace(begin, stage=MoveStage.ROWS, table="other", keys=keys.tobytes(), rows=bytes(8)),
        replace(begin, stage=MoveStage.ROWS, table="item", keys=keys.tobytes(), rows=bytes(12)),
        replace(begin, stage=MoveStage.ROWS, table="item", erased=bytes(range(8))),
        replace(begin, stage=MoveStage.READY, tokens=b"[]"),
    ]
    for each in wrong:
        with pytest.raises(StatusError, match=r"tables|invalid"):
            target.moves.move_part(encode(each), 30)
    target._push_log._max_bytes = target._push_log.num_bytes + 100
    part = replace(begin, stage=MoveStage.READY, tokens=bytes(200))
    with suppress(StatusError):
        target.moves.move_part(encode(part), 30)
    assert not target._push_log.gap
    target._push_log._max_bytes = 1 << 30
    with pytest.raises(Killed):
        world.kill(world.servers[1])
    world.restart_killed()
    world.check()


def test_a_shard_with_partitions_is_not_removed(world: World) -> None:
    maps = MapStore(world.store, "map")
    with pytest.raises(ResizeError, match="another resize"):
        _leave(replace(world.map(3), shards=world.map(3).shards[:2]), maps, maps.read())
    assert maps.read().num_shards == 3


def test_windows_stay_small_if_a_shard_knows_much_newer_pushes() -> None:
    newest = 10_000_000
    own, other = PushWindows(8), PushWindows(8)
    own.add(Token("client", 5))
    other.load([{"client": {"newest": newest, "missing": [], "in_part": []}}])
    own.join(other.saved(), range(2))
    saved = own.saved()["client"]
    assert len(saved["in_part"]) + len(saved["ahead"]) <= 2 * WIDTH
    assert own.verdict(Token("client", newest - 2 * WIDTH)) == "forgotten"
    assert own.verdict(Token("client", newest - WIDTH)) == "in part"
    assert own.applied_before(Token("client", newest)) == {0, 1}


@pytest.mark.parametrize("disk", ["running", "kept", "new"])
def test_a_shard_that_is_removed_and_comes_back_has_lost_nothing(disk: str, tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    world.pushes_in_moves = False
    busy, idle, late = world.clients
    ids = np.arange(NUM_IDS)
    num_pushes = 0

    def push(*clients: ParameterClient) -> None:
        nonlocal num_pushes
        for each in clients:
            each.push(world._gradients(ids), wait="applied")
            num_pushes += 1

    def stop() -> None:
        server = world.servers.pop(3)
        world.services.pop("shard:3").close()
        server.tables.close()
        if disk == "new":
            for path in world.config.push_log_folder.glob("shard-0004*"):
                path.unlink()

    try:
        push(busy, idle, late)
        for _ in range(3):
            world.resize(4)
            push(busy, idle)  # one of them makes no call while there are three shards
            world.resize(3)
            push(busy)
            if disk != "running":
                stop()
        world.resize(4)
        push(busy, late, idle)
        assert [each.tables.lost for each in world.servers.values()] == [""] * 4
        rows = busy.pull({"item": ids}).rows["item"]
        assert np.unique(rows).tolist() == [-num_pushes]
        busy.save("all")
        # A restart without the log is still reported.
        push(busy)
        stop()
        for path in world.config.push_log_folder.glob("shard-0004*"):
            path.unlink(missing_ok=True)
        world.start(3)
        with pytest.raises(ShardRestartedError, match="shard 4 at shard:3 restarted without"):
            push(busy)
        assert "does not have all acknowledged pushes" in world.servers[3].tables.lost
    finally:
        world.close()
