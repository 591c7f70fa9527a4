"""Replicas killed, stopped and cut, one or all of a shard, without a network: 1,000 trials of each.

The client and the services are the production code. The transport between them injects faults and has a
simulated clock, so that hanging calls take no time and trials are reproducible. In each trial replicas
fail at a random attempt and return after a random time. No pull may exceed its deadline by more than
10 %, no row may be wrong without a flag, and within 5 seconds all rows must be returned again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from reliability.report import Report
from reliability.served_rows import NUM_KEYS, TABLE, Watch, rows_of
from sparring_serve import ClientConfig, LookupClient, LookupService, ShardPosition, ShardReplicas
from sparring_serve.client.transport import Send
from sparring_serve.testing import FaultyTransport, MemoryTables, TransportClock

__all__ = ["TRIALS", "run"]

KINDS: dict[str, Sequence[str]] = {
    # The results of the client's attempts.
    "killed": ("cut",),
    "stopped": ("hang",),
    "cut": ("lost", "hang", "damaged"),
}
SCOPES = ("one replica", "one shard")
TRIALS = 1_000 * len(KINDS) * len(SCOPES)

_SHARDS = ShardReplicas((("s1r1:1", "s1r2:1"), ("s2r1:1", "s2r2:1")))
_LONGEST_OUTAGE_SECONDS = 8.0
_RECOVERY_SECONDS = 5.0
_SECONDS_BETWEEN_PULLS = 0.05


def run(trials: int) -> Report:
    """Runs trials of all kinds alternately."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    total, slowest = Watch(), 0.0
    keys = np.arange(NUM_KEYS, dtype=np.int64)
    rows = {TABLE.name: dict(zip(keys.tolist(), rows_of(1, keys), strict=True))}
    kinds = [(kind, scope) for kind in KINDS for scope in SCOPES]
    services = {
        address: LookupService(MemoryTables([TABLE], rows), ShardPosition(_SHARDS, shard))
        for shard, replicas in enumerate(_SHARDS.shards)
        for address in replicas
    }
    for trial in range(trials):
        kind, scope = kinds[trial % len(kinds)]
        clock = TransportClock(now=1000.0)
        watch = Watch(clock)
        seconds = _trial(random.Random(trial), services, kind, scope, watch, clock)
        counts[f"{kind}, {scope}"] += 1
        slowest = max(slowest, seconds)
        failures += [f"trial {trial}, {kind}, {scope}: {each}" for each in watch.failures]
        total.add(watch)
    found = {**counts, **total.counts()}
    found["longest recovery, milliseconds of its clock"] = round(slowest * 1e3)
    return Report(trials, found, failures)


def _trial(
    draw: random.Random,
    services: dict[str, LookupService],
    kind: str,
    scope: str,
    watch: Watch,
    clock: TransportClock,
) -> float:
    """Returns the seconds from the return of the replicas to the first pull with all rows."""
    shard = draw.choice(_SHARDS.shards)
    broken = set(shard) if scope == "one shard" else {draw.choice(shard)}
    transport = FaultyTransport(services, clock=clock)
    config = ClientConfig(
        deadline_seconds=draw.choice([0.05, 0.2, 1.0]),
        on_failure=draw.choice(["raise", "flag", "stale", "initial", "stale_or_initial"]),
        consistency=draw.choice(["newest", "one_version"]),
        max_call_bytes=draw.choice([4096, 1 << 20]),
    )
    keys = np.array(draw.sample(range(NUM_KEYS), draw.randint(20, NUM_KEYS)), np.int64)
    with LookupClient(_SHARDS, config, transport=transport, clock=clock) as client:
        for _ in range(draw.randint(1, 3)):
            watch.pull(client, keys, must="there is no fault yet")
        transport.fault = _fault(broken, KINDS[kind], draw, skip=draw.randint(0, 4))
        back = clock.now + draw.uniform(0, _LONGEST_OUTAGE_SECONDS)
        while clock.now < back:
            # The other replica of the shard replies within the same deadline.
            watch.pull(client, keys, must="" if scope == "one shard" else "one replica was running")
            clock.now += draw.choice([0.001, 0.2, 0.8])
        transport.fault = lambda _: ""
        back = clock.now
        while not watch.pull(client, keys):
            if clock.now - back > _RECOVERY_SECONDS:
                watch.failures.append(f"not recovered within {_RECOVERY_SECONDS:g} s")
                break
            clock.now += _SECONDS_BETWEEN_PULLS
        seconds = clock.now - back
        for _ in range(3):
            watch.pull(client, keys, must="all replicas had recovered")
        return seconds


def _fault(
    broken: set[str], faults: Sequence[str], draw: random.Random, *, skip: int
) -> Callable[[Send], str]:
    """Returns faults of attempts at `broken` replicas, after `skip` attempts of a pull in progress."""
    left = skip

    def fault(send: Send) -> str:
        nonlocal left
        if send.address not in broken:
            return ""
        if left > 0:
            left -= 1
            return ""
        return draw.choice(faults)

    return fault
