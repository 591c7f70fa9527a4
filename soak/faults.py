"""The faults of a run. Each lasts some seconds, and returns what it did."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from soak.processes import NUM_RANKS, Process
from soak.world import World, free_bytes
from sparring_redis.testing.proxy import Fault, FaultProxy

__all__ = ["FAULTS", "NoEffectError", "order"]

_STOP_SECONDS = 5.0
_DISK_SECONDS = 5.0
_SLOW_SECONDS = 15.0
_SLOW_DELAY_SECONDS = 0.02
_CLOCK_SECONDS = 20.0
_SILENT_SECONDS = 15.0
_NUM_SILENT = 60


class NoEffectError(Exception):
    """A fault found nothing that it could harm at this moment."""


def order(seed: int, kinds: tuple[str, ...]) -> Iterator[str]:
    """Yields the kinds of faults: all once in random order, then all once in another order."""
    draw = random.Random(seed)
    chosen = list(kinds or FAULTS)
    while True:
        yield from draw.sample(chosen, len(chosen))


def _kill(world: World, draw: random.Random) -> str:
    """A process is killed."""
    name = draw.choice(["rank", "publisher", "server", "server", "parameters", "nats"])
    if name in ("rank", "publisher"):
        return _kill_rank(world, draw, name)
    process = {
        "server": draw.choice(world.servers),
        "parameters": draw.choice(world.parameter_servers),
        "nats": world.nats,
    }[name]
    role = _role(world, process)
    process.kill()
    return process.name + role


def _role(world: World, process: Process) -> str:
    """Returns which role a replica of the parameter service has; empty for other processes."""
    if process not in world.parameter_servers:
        return ""
    shard = world.parameter_servers.index(process) // 2
    return " (leader)" if world.parameter_leader(shard) is process else " (follower)"


def _kill_rank(world: World, draw: random.Random, name: str) -> str:
    found = {each: pid for each, pid in world.ranks().items() if each.startswith(name)}
    if not found:
        raise NoEffectError(f"no {name} was running")
    chosen = draw.choice(sorted(found))
    os.kill(found[chosen], signal.SIGKILL)
    return chosen


def _stop(world: World, draw: random.Random) -> str:
    """A process is stopped for some seconds, and continues."""
    ranks = {each: pid for each, pid in world.ranks().items() if each != "publisher"}
    others = [*world.servers, *world.parameter_servers]
    if ranks and draw.random() < 0.4:
        name = draw.choice(sorted(ranks))
        pid = ranks[name]
    else:
        process = draw.choice(others)
        name, pid = process.name + _role(world, process), process.pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(_STOP_SECONDS)
    os.kill(pid, signal.SIGCONT)
    return f"{name}, {_STOP_SECONDS:g} s"


def _fill_disk(world: World, _: random.Random) -> str:
    """The disk of ranks, snapshots and the parameter service has no free byte."""
    ballast = world.disk / "ballast"
    end = time.monotonic() + _DISK_SECONDS
    with ballast.open("wb", buffering=0) as file:
        while time.monotonic() < end:
            with suppress(OSError):
                while free := free_bytes(world.disk):
                    file.write(bytes(min(free, 1 << 24)))
            time.sleep(0.02)
    ballast.unlink()
    return f"{_DISK_SECONDS:g} s"


def _restart_redis(world: World, _: random.Random) -> str:
    """Redis is killed, and starts again a second later."""
    world.redis.kill()
    time.sleep(1)
    world.redis.start()
    return "1 s"


def _lose_delta(world: World, _: random.Random) -> str:
    """The newest published version disappears."""
    versions = _folders(world.served)
    if not versions:
        raise NoEffectError("there was no version")
    newest = versions[-1]
    newest.rename(world.hidden / f"{time.monotonic_ns()}-{newest.name}")
    return newest.name


def _damage_file(world: World, draw: random.Random) -> str:
    """A bit of the newest snapshot or version flips, and a process that reads it starts again."""
    is_served = draw.random() < 0.5
    folders = _folders(world.served if is_served else world.snapshots)
    if not folders:
        raise NoEffectError("there was nothing to damage")
    files = sorted(each for each in folders[-1].rglob("*") if each.is_file())
    if not files:
        raise NoEffectError(f"{folders[-1].name} was removed")
    largest = max(files, key=lambda each: each.stat().st_size)
    content = bytearray(largest.read_bytes())
    at = draw.randrange(len(content))
    content[at] ^= 1 << draw.randrange(8)
    # A new file: pages that a process has mapped after verifying them stay as they are.
    damaged = world.hidden / "damaged"
    damaged.write_bytes(content)
    damaged.rename(largest)
    if is_served:
        process = draw.choice(world.servers)
        process.kill()
        restarted = process.name
    else:
        restarted = _kill_rank(world, draw, "rank")
    return f"{largest.relative_to(world.disk)}, byte {at}; killed {restarted}"


def _step_clock(world: World, draw: random.Random) -> str:
    """The wall clock of a process jumps, and jumps back later."""
    seconds = draw.choice([-3600, -30, 30, 3600])
    process: Process = draw.choice([world.trainer, *world.servers, *world.parameter_servers])
    rank = draw.randrange(NUM_RANKS) if process is world.trainer else None
    assert process.control is not None
    process.control.step_clock(seconds, rank)
    time.sleep(_CLOCK_SECONDS)
    process.control.step_clock(0, rank)
    name = process.name if rank is None else f"rank {rank}"
    return f"{name}, {seconds:+d} s for {_CLOCK_SECONDS:g} s"


def _slow_disk(world: World, _: random.Random) -> str:
    """Each access to a file takes longer, in all processes."""
    controls = [each.control for each in world.by_name.values() if each.control is not None]
    for each in controls:
        each.slow_disk(_SLOW_DELAY_SECONDS)
    time.sleep(_SLOW_SECONDS)
    for each in controls:
        each.slow_disk(0)
    return f"{_SLOW_DELAY_SECONDS * 1000:g} ms per access for {_SLOW_SECONDS:g} s"


def _drop_connections(world: World, draw: random.Random) -> str:
    """All connections to a server break, and some of the next ones."""
    proxies: dict[str, FaultProxy] = {"nats": world.nats_proxy, "Redis": world.redis_proxy}
    for service, shards in (
        ("parameters", world.parameter_proxies),
        ("server", world.server_proxies),
    ):
        for shard, replicas in enumerate(shards):
            for replica, each in enumerate(replicas):
                proxies[f"{service} {shard + 1}/2 replica {replica + 1}"] = each
    name = draw.choice(sorted(proxies))
    num_next = draw.choice([0, 1, 5])
    proxies[name].arm(Fault(cut_reply_at=draw.choice([0, 1, 100, 5_000])), num_next)
    time.sleep(3)
    proxies[name].arm(Fault())
    return f"{name}, and the next {num_next}"


def _stay_silent(world: World, _: random.Random) -> str:
    """Clients connect, and send nothing, or read nothing."""
    ports = [port for shard in world.server_ports + world.parameter_ports for port in shard]
    num_connected = 0
    with ExitStack() as closing:
        for number in range(_NUM_SILENT):
            with suppress(OSError):
                closing.enter_context(_connect(ports[number % len(ports)], number // 6 % 3))
                num_connected += 1
        if not num_connected:
            raise NoEffectError("no server accepted a connection")
        time.sleep(_SILENT_SECONDS)
    return f"{num_connected} connections for {_SILENT_SECONDS:g} s"


def _connect(port: int, kind: int) -> socket.socket:
    """Returns a connection on which nothing, half of a greeting, or pings without a reader arrive."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    ping = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)
    client = socket.create_connection(("127.0.0.1", port), 2)
    client.settimeout(0.1)
    with suppress(OSError):
        client.sendall([b"", preface[:10], preface + ping * 1_000][kind])
    return client


FAULTS: Mapping[str, Callable[[World, random.Random], str]] = {
    "kill": _kill,
    "stop": _stop,
    "full disk": _fill_disk,
    "Redis restart": _restart_redis,
    "lost delta": _lose_delta,
    "damaged file": _damage_file,
    "clock step": _step_clock,
    "slow disk": _slow_disk,
    "dropped connection": _drop_connections,
    "silent client": _stay_silent,
}


def _folders(folder: Path) -> list[Path]:
    """Returns the versions in a folder, oldest first."""
    return sorted(
        (each for each in folder.glob("step-*") if each.is_dir()),
        key=lambda each: int("".join(filter(str.isdigit, each.name.split("-")[1])) or 0),
    )
