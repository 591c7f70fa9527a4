"""Servers of every kind: encrypted, guarded, behind a socket, watched by Sentinel, in a cluster."""

from __future__ import annotations

import re
import signal
import socket
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import ShardMap, TableConfig
from sparring.errors import DeadlineError, StorageIOError
from sparring_redis.connections.connection import Access
from sparring_redis.connections.deadline import Deadline
from sparring_redis.options import RedisRendezvousOptions
from sparring_redis.rendezvous import RedisRendezvous
from sparring_redis.testing.certificates import make_certificates
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.sentinel import RedisSentinel
from sparring_redis.testing.server import RedisServer, redis_server_missing
from sparring_testing.processes.deadlines import check_with_deadlines

TABLE = TableConfig("films", 4)
KEYS = np.arange(-500, 500, dtype=np.int64)
ROWS = np.random.default_rng(0).random((1_000, 4), np.float32)
SECRET = "hunter2-hunter2"

pytestmark = pytest.mark.skipif(
    redis_server_missing() is not None, reason=redis_server_missing() or ""
)


def check(**options: Any) -> None:
    """Fails unless rows are read as they were written."""
    with open_storage("redis", TABLE, **{"deadline_seconds": 60.0, **options}) as storage:
        storage.upsert(KEYS, ROWS)
        found = storage.find(KEYS)
        assert found.found.all()
        assert (found.rows == ROWS).all()
        assert storage.size == len(KEYS)


def test_a_unix_socket(own_redis_server: RedisServer) -> None:
    check(unix_socket=own_redis_server.unix_socket, database=3)
    assert own_redis_server.ask("INFO", "keyspace").count(b"db3:") == 1


def test_an_encrypted_server_whose_certificate_is_trusted(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    access = Access(context=made.context)
    with RedisServer(made.server_settings, access=access) as server:
        check(url=server.url, tls_ca_file=made.authority)
        check(host="127.0.0.1", port=server.port, tls=True, tls_ca_file=made.authority)
        with pytest.raises(StorageIOError, match=r"(?i)certificate"):
            check(url=server.url)
        other = tmp_path / "other"
        other.mkdir()
        authority = make_certificates(other).authority
        with pytest.raises(StorageIOError, match=r"(?i)certificate"):
            check(url=server.url, tls_ca_file=authority)
        # The server does not accept plain text.
        with pytest.raises((StorageIOError, DeadlineError)):
            check(port=server.port, deadline_seconds=0.3)


def test_a_certificate_for_another_host_is_rejected(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, host="127.0.0.9")
    with RedisServer(made.server_settings, access=Access(context=made.context)) as server:
        with pytest.raises(StorageIOError, match=r"127\.0\.0\.1"):
            check(url=server.url, tls_ca_file=made.authority)
        check(url=server.url, tls_ca_file=made.authority, tls_check_hostname=False)


_GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "keep-rows-in-redis.md"


def permissions(user: str) -> list[str]:
    """The rules that the guide gives for this ACL user."""
    text = _GUIDE.read_text()
    begin = text.index(f"ACL SETUSER {user} on >PASSWORD ")
    rules = text[begin : text.index("```", begin)].partition("\nACL SETUSER")[0]
    return rules.split()[5:]


def guard(redis_server: RedisServer, user: str, rules: list[str]) -> None:
    """From now on only this user can connect."""
    redis_server.ask("ACL", "SETUSER", user, "on", f">{SECRET}", *rules)
    redis_server.ask("ACL", "SETUSER", "default", "off")


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the name of the variable that contains the password."""
    monkeypatch.setenv("FILMS_PASSWORD", SECRET)
    return "FILMS_PASSWORD"


def test_an_acl_user_with_the_documented_permissions(
    own_redis_server: RedisServer, password: str
) -> None:
    guard(own_redis_server, "trainer", permissions("trainer"))
    options = {
        "url": own_redis_server.url,
        "username": "trainer",
        "password_environment": password,
    }
    check(**options)
    check(**options, database=1)
    with open_storage("redis", TABLE, **options) as storage:
        assert sum(len(chunk) for chunk in storage.scan()) == len(KEYS)
        assert storage.memory_bytes > 0
        assert storage.erase(KEYS[:3]) == 3
        storage.clear()
    # A part of a table, whose buckets other ranks share.
    shard = ShardMap.balanced(3).shard_of(1)
    with open_storage("redis", TABLE, shard=shard, **options) as storage:
        storage.upsert(KEYS, ROWS)
        assert 0 < storage.size < len(KEYS)
        storage.clear()
        assert storage.size == 0


def test_a_job_with_the_documented_permissions_saves_loads_and_resumes(
    own_redis_server: RedisServer, password: str, tmp_path: Path
) -> None:
    guard(own_redis_server, "trainer", permissions("trainer"))
    options = {"url": own_redis_server.url, "username": "trainer", "password_environment": password}
    choice = StorageChoice("redis", options)
    with StepContainer() as container:
        container.declare(TABLE, choice)
        container.storage("films").upsert(KEYS, ROWS)
        container.save(str(tmp_path / "one"))
        container.storage("films").upsert(KEYS, ROWS[::-1].copy())
        container.load(str(tmp_path / "one"))
        assert (container.storage("films").find(KEYS).rows == ROWS).all()
    with StepContainer() as container:
        container.declare(TABLE, choice)
        assert (container.lookup("films", KEYS, is_registered=False).rows == ROWS).all()


@pytest.mark.parametrize("database", [0, 1])
def test_ranks_meet_with_the_documented_permissions(
    own_redis_server: RedisServer, password: str, database: int
) -> None:
    guard(own_redis_server, "meeting", permissions("meeting"))
    options = RedisRendezvousOptions(
        url=f"{own_redis_server.url}/{database}",
        username="meeting",
        password_environment=password,
        world_size=1,
        deadline_seconds=60.0,
    )
    with closing(RedisRendezvous(options)) as rendezvous:
        rendezvous.set("run", b"1")
        assert rendezvous.get("run", 1.0) == b"1"


def test_a_cluster_serves_users_with_the_documented_permissions(password: str) -> None:
    with RedisCluster(3) as nodes:
        for node in nodes.servers:
            for user in ("trainer", "meeting"):
                node.ask("ACL", "SETUSER", user, "on", f">{SECRET}", *permissions(user))
        for node in nodes.servers:
            node.ask("ACL", "SETUSER", "default", "off")
        check(url=nodes.url, username="trainer", password_environment=password)
        options = RedisRendezvousOptions(
            url=nodes.url, username="meeting", password_environment=password, world_size=1
        )
        with closing(RedisRendezvous(options)) as rendezvous:
            rendezvous.set("run", b"1")
            assert rendezvous.get("run", 1.0) == b"1"


@pytest.mark.parametrize("missing", ["hset", "client|kill", "client|info"])
def test_a_missing_permission_is_named(
    own_redis_server: RedisServer, password: str, missing: str
) -> None:
    """Also those that only a retry needs, before one does."""
    guard(
        own_redis_server,
        "trainer",
        [each for each in permissions("trainer") if each != f"+{missing}"],
    )
    start = time.monotonic()
    with pytest.raises(StorageIOError, match=rf"permission.*'{re.escape(missing)}'") as refused:
        check(url=own_redis_server.url, username="trainer", password_environment=password)
    assert time.monotonic() - start < 30, "what is refused is not tried again and again"
    assert SECRET not in str(refused.value)


def test_a_wrong_password_is_rejected_at_once_and_not_printed(
    own_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_redis_server.ask("CONFIG", "SET", "requirepass", "right")
    monkeypatch.setenv("FILMS_PASSWORD", SECRET)
    for options in ({"password_environment": "FILMS_PASSWORD"}, {}):
        start = time.monotonic()
        with pytest.raises(StorageIOError, match=r"(?i)password|authentication") as refused:
            check(url=own_redis_server.url, **options)
        assert time.monotonic() - start < 30
        assert SECRET not in str(refused.value) + repr(refused.value.details)


def test_rows_outlive_a_server_that_keeps_a_log() -> None:
    with RedisServer({"appendonly": "yes"}) as server:
        check(url=server.url)
        with open_storage("redis", TABLE, url=server.url) as storage:
            server.kill()
            server.start()
            # The existing connection of the storage is dead.
            assert (storage.find(KEYS).rows == ROWS).all()
            storage.upsert(KEYS[:1], ROWS[1:2])
            assert storage.erase(KEYS[:1]) == 1


def test_a_failover_is_followed() -> None:
    with RedisSentinel() as watched:
        unknown = f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/books"
        with pytest.raises(StorageIOError, match="'books'"):
            check(url=unknown)
        with open_storage("redis", TABLE, url=watched.url) as storage:
            storage.upsert(KEYS, ROWS)
            watched.master.ask("WAIT", 1, 2000)
            watched.master.kill()
            # Until the replica is master the calls wait, within their deadline.
            assert (storage.find(KEYS).rows == ROWS).all()
            storage.upsert(KEYS, ROWS[::-1].copy())
            assert (storage.find(KEYS).rows == ROWS[::-1]).all()
        address = watched.sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", watched.service)
        assert int(address[1]) == watched.replica.port


def test_a_silent_sentinel_does_not_hide_the_other_one() -> None:
    """Accepts connections and never replies, like a stopped machine."""
    with RedisSentinel() as watched, socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{watched.sentinel.port}"
        url = f"redis+sentinel://{hosts}/{watched.service}"

        def check_first(deadline: float) -> None:
            with open_storage("redis", TABLE, url=url, deadline_seconds=deadline) as storage:
                storage.upsert(KEYS, ROWS)
                client = storage._client  # type: ignore[attr-defined]
                start = time.monotonic()
                # The silent server gets at most a third of the deadline.
                client.topology.refresh(Deadline(120.0))
                assert time.monotonic() - start < 30, "the one that answered is asked first"

        check_with_deadlines(check_first, (3.0, 12.0))


def test_moving_slots_are_followed(redis_cluster: RedisCluster, new_prefix: Any) -> None:
    """A bucket's slot goes to another node while calls run: ASK first, then MOVED."""
    options = {"url": redis_cluster.url, "prefix": new_prefix(), "num_buckets": 1}
    with open_storage("redis", TABLE, **options) as storage:
        storage.upsert(KEYS, ROWS)
        layout = storage._layout  # type: ignore[attr-defined]
        slot, name = layout.command(0, "HLEN").slot, b"%s" % layout._names[0]
        old = next(each for each in redis_cluster.servers if _owns(each, slot))
        new = next(each for each in redis_cluster.servers if each is not old)
        ids = {each: each.ask("CLUSTER", "MYID") for each in (old, new)}
        new.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[old])
        old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[new])
        assert (storage.find(KEYS).rows == ROWS).all()
        old.ask("MIGRATE", "127.0.0.1", new.port, name, 0, 5000)
        assert (storage.find(KEYS).rows == ROWS).all()
        storage.upsert(KEYS, ROWS[::-1].copy())
        assert storage.erase(KEYS[:7]) == 7
        for each in (new, old):
            each.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[new])
        assert (storage.find(KEYS[7:]).rows == ROWS[::-1][7:]).all()
        assert storage.erase(KEYS[7:]) == len(KEYS) - 7


def _owns(redis_server: RedisServer, slot: int) -> bool:
    return any(
        first <= slot <= last and master[1] == redis_server.port
        for first, last, master, *_ in redis_server.ask("CLUSTER", "SLOTS")
    )


def test_a_stopped_node_does_not_hide_the_others(new_prefix: Any) -> None:
    with (
        RedisCluster(3, {"cluster-require-full-coverage": "no"}) as nodes,
        open_storage("redis", TABLE, url=nodes.url) as storage,
    ):
        storage.upsert(KEYS, ROWS)

        def check_others(deadline: float) -> None:
            nodes.wait()
            num_found = 0
            with open_storage("redis", TABLE, url=nodes.url, deadline_seconds=deadline) as hasty:
                nodes.servers[0].signal(signal.SIGSTOP)
                try:
                    for key in KEYS[:8]:
                        with suppress(DeadlineError):
                            num_found += int(hasty.find([key]).found.sum())
                finally:
                    nodes.servers[0].signal(signal.SIGCONT)
            assert num_found > 0

        check_with_deadlines(check_others, (0.3, 2.0, 8.0))
        nodes.wait()
        assert (storage.find(KEYS).rows == ROWS).all()
