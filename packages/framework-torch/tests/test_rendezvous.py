"""Rendezvous with torchrun's variables and its store."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from sparring import make_plugin_manager
from sparring.contracts import Membership, ShardMap, validate_options
from sparring.errors import DeadlineError, InvalidArgumentError
from sparring_torch.distributed.attempts import agree_on_prefix

_RANK = """
import json, sys
import numpy as np
from sparring import make_plugin_manager
from sparring.contracts import validate_options
from sparring.errors import DeadlineError

manager = make_plugin_manager()
place = manager.rendezvous("torch")
rendezvous = place.factory(validate_options("rendezvous", place, {"device": "cuda"}))
mine = rendezvous.membership()
group = manager.collective("torch")
with group.factory(mine, validate_options("collective", group, {}), 20.0) as collective:
    rendezvous.set(f"greeting of {mine.rank}", b"hello \\x00" + bytes([mine.rank]))
    heard = rendezvous.get(f"greeting of {1 - mine.rank}", 20.0)
    total = collective.all_reduce(np.array([mine.rank + 1]))
    try:
        rendezvous.get("what nobody sets", 0.1)
        missing = "found"
    except DeadlineError:
        missing = "deadline"
    collective.barrier()
with open(f"{sys.argv[1]}/{mine.rank}.json", "w") as file:
    json.dump([mine.world_size, mine.local_rank, mine.device, list(heard), int(total[0]), missing], file)
"""


# Below the ports that the system assigns (ip_local_port_range), which other processes could get
# between here and their use. Other processes of these tests start elsewhere.
_PORTS = iter(range(20_000 + os.getpid() % 100 * 100, 32_000))


def free_port() -> int:
    """Returns a different one each time."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


# A run of torchrun on one node is in test_distributed_model_parallel.py.
@pytest.mark.parametrize(
    "num_nodes", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.slow)]
)
def test_ranks_of_torchrun_meet_through_its_store(tmp_path: Path, num_nodes: int) -> None:
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "job",
        "--local-addr", "127.0.0.1", "--nnodes", str(num_nodes),
        "--nproc-per-node", str(2 // num_nodes), str(script), str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    agents = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(num_nodes)
    ]
    try:
        for agent in agents:
            _, errors = agent.communicate(timeout=120)
            assert agent.returncode == 0, errors
    finally:
        for agent in agents:
            agent.kill()
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        local_rank = rank if num_nodes == 1 else 0
        heard = [*b"hello \x00", 1 - rank]
        assert found == [2, local_rank, f"cuda:{local_rank}", heard, 3, "deadline"]


def test_restarted_ranks_ignore_what_ended_ranks_left_in_the_store() -> None:
    """torchrun's agent keeps the store, and counts the starts differently on each node."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(rank: int) -> bytes:
        client = TCPStore("127.0.0.1", server.port, is_master=False)
        time.sleep(0.05 * rank)  # Rank 0 first finds the numbers of the previous start.
        store = agree_on_prefix(PrefixStore("job", client), rank, 3, 60.0)
        if rank == 2:
            assert not store.check(["address"]), "an address of an earlier start"
            store.set("address", str(next(numbers)))
        return bytes(store.get("address"))

    numbers = itertools.count(1)
    with ThreadPoolExecutor(3) as threads:
        for number in (1, 2, 3):
            assert [*threads.map(start, range(3))] == [str(number).encode()] * 3
    with pytest.raises(dist.DistError):  # The other ranks do not start again.
        agree_on_prefix(PrefixStore("job", server), 0, 3, 0.2)


def open_torch(**options: Any) -> Any:
    descriptor = make_plugin_manager().rendezvous("torch")
    return descriptor.factory(validate_options("rendezvous", descriptor, options))


def test_a_store_without_a_server_raises_a_deadline_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(InvalidArgumentError, match="MASTER_PORT is missing"):
        open_torch()
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(DeadlineError, match=r"within 1\.5 s"):
        open_torch(start_seconds=1.5)


def test_the_collective_is_rejected_without_an_address_from_a_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    descriptor = make_plugin_manager().collective("torch")
    options = validate_options("collective", descriptor, {})
    with pytest.raises(InvalidArgumentError, match="start the ranks with torchrun"):
        descriptor.factory(Membership(rank=0, world_size=2), options, 1.0)


def test_a_world_of_one_needs_no_launcher() -> None:
    descriptor = make_plugin_manager().collective("torch")
    options = validate_options("collective", descriptor, {})
    with descriptor.factory(Membership(rank=0, world_size=1), options, 1.0) as collective:
        collective.barrier()
    assert not dist.is_initialized()
    assert ShardMap.balanced(1).world_size == collective.world_size


def test_a_group_initialized_by_the_program_is_used_and_not_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        descriptor = make_plugin_manager().collective("torch")
        options = validate_options("collective", descriptor, {})
        with pytest.raises(InvalidArgumentError, match=r"rank 0 of 2 .* from torch\.distributed"):
            descriptor.factory(Membership(rank=0, world_size=2), options, 1.0)
        descriptor.factory(Membership(rank=0, world_size=1), options, 1.0).close()
        assert dist.is_initialized()
        dist.barrier()
    finally:
        dist.destroy_process_group()
