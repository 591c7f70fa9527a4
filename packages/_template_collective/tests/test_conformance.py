"""Runs sparring's test kit, and tests what is specific to this collective."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts import Collective, Membership
from sparring.errors import DeadlineError, InvalidArgumentError, PeerFailure
from sparring_tcp import TcpOptions
from sparring_tcp.backend import TcpCollective
from sparring_tcp.plugin import sparring_register_collective
from sparring_testing import CollectiveTests

[TCP] = sparring_register_collective()


def join(folder: Path, rank: int, world_size: int, deadline_seconds: float = 60.0) -> Collective:
    options = TcpOptions(folder=folder, start_seconds=30.0)
    return TCP.factory(Membership(rank, world_size), options, deadline_seconds)


class TestTcpCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self, tmp_path: Path) -> Iterator[Any]:
        numbers = count()

        def run(
            world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 60.0
        ) -> list[Any]:
            folder = tmp_path / str(next(numbers))

            def one(rank: int) -> Any:
                with join(folder, rank, world_size, deadline_seconds) as collective:
                    return body(collective, *arguments)

            with ThreadPoolExecutor(world_size) as threads:
                return list(threads.map(one, range(world_size)))

        return run


DIES = """
import os, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_conformance import join
collective = join(Path(sys.argv[1]), 1, 2)
collective.barrier()
os._exit(3)
"""


def test_a_process_that_exits_is_named_at_once(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    with subprocess.Popen([sys.executable, "-c", DIES, str(tmp_path / "m"), here]) as process:
        with join(tmp_path / "m", 0, 2, deadline_seconds=60.0) as collective:
            collective.barrier()
            with pytest.raises(PeerFailure, match=r"rank 1.*its connection ended"):
                collective.receive(np.empty(3), 1).wait()
        assert process.wait(30) == 3


class ClosesAfterOneWrite(socket.socket):
    """A socket whose peer has received its message, leaves, and closes the connection."""

    def sendall(self, data: Any, *flags: int) -> None:
        super().sendall(data, *flags)
        self.close()


def test_a_peer_may_leave_after_the_header_of_an_empty_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours, theirs = socket.create_connection(server.getsockname()), server.accept()[0]
    with theirs, ClosesAfterOneWrite(fileno=ours.detach()) as link:
        collective = TcpCollective(0, {1: link}, deadline_seconds=5.0)
        collective.send(np.empty((3, 0)), 1).wait()
        collective.close()


def test_a_folder_of_an_earlier_job_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "rank-0").write_text("127.0.0.1 1")
    with pytest.raises(InvalidArgumentError, match=r"rank-0 already exists.*set a new folder"):
        join(tmp_path, 0, 2)


def test_ranks_that_do_not_join_are_named(tmp_path: Path) -> None:
    options = TcpOptions(folder=tmp_path, start_seconds=0.2)
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        with pytest.raises(DeadlineError, match=rf"ranks \[{1 - rank}\] did not connect through"):
            TCP.factory(Membership(rank, 2), options.model_copy(update={"folder": folder}), 1.0)
