"""A server for tests also starts if another process took the port that was free before."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sparring_redis.testing import server as module
from sparring_redis.testing.server import RedisServer

GivePorts = Callable[..., list[int]]


@pytest.fixture
def give_ports(monkeypatch: pytest.MonkeyPatch) -> GivePorts:
    """Makes servers try these ports first; returns the list of remaining ports, which shrinks."""
    real = module.free_port

    def give(*ports: int) -> list[int]:
        left = list(ports)
        monkeypatch.setattr(module, "free_port", lambda: left.pop(0) if left else real())
        return left

    return give


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Records all folders that servers create from now on."""
    made: list[Path] = []
    real = tempfile.mkdtemp

    def make(**options: Any) -> str:
        made.append(Path(real(**options)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    return made


@pytest.fixture
def taken_port(closing: ExitStack) -> int:
    """A socket that accepts connections and never replies."""
    return int(closing.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1])


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "another redis"])
def test_a_port_that_was_taken_meanwhile(
    redis_server: RedisServer,
    taken_port: int,
    give_ports: GivePorts,
    folders: list[Path],
    is_silent: bool,
) -> None:
    port = taken_port if is_silent else redis_server.port
    left = give_ports(port)
    with RedisServer() as started:
        assert not left
        assert started.port != port
        assert [each.exists() for each in folders] == [False, True]
        started.ask("SET", "mine", 1)
        assert redis_server.ask("EXISTS", "mine") == 0
        # A restart uses the same port, because users of the server know no other.
        port = started.port
        started.kill()
        started.start()
        assert started.port == port
    assert not folders[-1].exists()


@pytest.mark.usefixtures("redis_server")
def test_a_port_between_nodes_that_is_taken(taken_port: int, give_ports: GivePorts) -> None:
    left = give_ports(taken_port - 10_000)
    with RedisServer({"cluster-enabled": "yes"}) as started:
        assert not left
        assert started.port != taken_port - 10_000
        assert b"cluster_enabled:1" in started.ask("INFO", "cluster")


def test_ports_that_are_always_taken(
    redis_server: RedisServer, give_ports: GivePorts, folders: list[Path]
) -> None:
    give_ports(*[redis_server.port] * 100)
    with pytest.raises(RuntimeError, match="Address already in use"):
        RedisServer()
    assert len(folders) == 5
    assert not any(each.exists() for each in folders)


@pytest.mark.usefixtures("redis_server")
def test_another_failure_is_not_tried_again(folders: list[Path]) -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        RedisServer({"no-such-setting": "yes"})
    (folder,) = folders
    assert not folder.exists()
