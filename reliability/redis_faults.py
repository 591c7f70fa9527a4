"""Redis stopped, killed, paused, slow, with partial replies: `python -m reliability.redis_faults`.

Each trial injects a fault while one call of a storage runs, and checks four promises:

late      the call ended within its deadline, with a small tolerance
untyped   it returned, or raised DeadlineError or StorageIOError, but no other error
silent    its result was correct: rows as written, none missing, none replaced by zeros
twice     afterwards each row is the old or the new one, repeating the call makes all rows new, and
          delayed commands of the first call do not replace later writes

It prints a line per kind of fault and a sum, and returns 1 if a promise was violated.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sparring import open_storage
from sparring.contracts import Shard, ShardMap, Storage, TableConfig, partition
from sparring.errors import DeadlineError, StorageIOError
from sparring_redis.testing.cluster import RedisCluster
from sparring_redis.testing.proxy import Fault, FaultProxy
from sparring_redis.testing.server import RedisServer, redis_server_missing

if TYPE_CHECKING:
    from reliability.report import Report

__all__ = ["KINDS", "TRIALS", "Counts", "run", "run_trials"]

TRIALS = 300

_NUM_KEYS = 600
_NUM_OTHERS = 100_000
"""Rows of all ranks besides one part: so many that reading them takes several replies."""
_DIM = 16
_SLACK_SECONDS = 0.5
_NEXT = 0.5
"""Difference between the versions of a second upsert and of the rows before the first one."""
_MAP = ShardMap.balanced(2)
_SHARD = _MAP.shard_of(0)
_PROMISES = ("late", "untyped", "silent", "twice")


@dataclass
class Counts:
    """Counts of the outcomes of all trials."""

    num_trials: Counter[str] = field(default_factory=Counter)
    num_returned: Counter[str] = field(default_factory=Counter)
    num_raised: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    """A line for each violated promise."""
    longest_seconds: float = 0.0


class _World:
    """A server behind a proxy, a cluster, and a storage on each; rows persist when they are killed."""

    def __init__(self, deadline_seconds: float, draw: random.Random) -> None:
        self.deadline_seconds = deadline_seconds
        self.draw = draw
        self._closing = ExitStack()
        try:
            settings = {"appendonly": "yes", "appendfsync": "always", "enable-debug-command": "yes"}
            self.server = self._closing.enter_context(RedisServer(settings))
            self.proxy = self._closing.enter_context(FaultProxy(self.server.port))
            self.cluster = self._closing.enter_context(
                RedisCluster(3, {**settings, "cluster-require-full-coverage": "no"})
            )
            self.single = self._open(self.proxy.url)
            self.spread = self._open(self.cluster.url)
            # The part of one rank; rows of the other rank are in the same buckets.
            self.parted = self._open(self.proxy.url, table="parted", shard=_SHARD, num_buckets=1)
        except BaseException:
            self._closing.close()
            raise

    def _open(
        self, url: str, *, table: str = "rows", shard: Shard | None = None, num_buckets: int = 32
    ) -> Storage:
        return self._closing.enter_context(
            open_storage(
                "redis",
                TableConfig(table, _DIM),
                shard=shard,
                url=url,
                deadline_seconds=self.deadline_seconds,
                num_buckets=num_buckets,
            )
        )

    def open_again(self) -> None:
        """Opens a new table, which sends all requests of opening."""
        name = f"opened{self.draw.randrange(1 << 30)}"
        open_storage(
            "redis",
            TableConfig(name, _DIM),
            url=self.proxy.url,
            deadline_seconds=self.deadline_seconds,
        ).close()

    def close(self) -> None:
        self._closing.close()

    # -- faults, which are active inside their block or until they end by themselves ------

    def _some_seconds(self) -> float:
        """Returns a time that is shorter than the deadline in two of three cases."""
        share = self.draw.choice([0.1, 0.4, 1.3])
        return share * self.deadline_seconds

    @contextmanager
    def stopped(self, server: RedisServer) -> Iterator[None]:
        server.signal(signal.SIGSTOP)
        going_on = threading.Timer(self._some_seconds(), server.signal, (signal.SIGCONT,))
        going_on.start()
        try:
            yield
        finally:
            going_on.join()

    @contextmanager
    def killed(self, server: RedisServer) -> Iterator[None]:
        """Kills the server before the call or while it runs; restarts it later."""
        seconds, delay = self._some_seconds(), self.draw.choice([0.0, 0.002 * self.draw.random()])

        def kill_and_start() -> None:
            time.sleep(delay)
            server.kill()
            is_killed.set()
            time.sleep(seconds)
            server.start()

        is_killed = threading.Event()
        thread = threading.Thread(target=kill_and_start)
        thread.start()
        if not delay:
            is_killed.wait()
        try:
            yield
        finally:
            thread.join()
            if server in self.cluster.servers:
                self.cluster.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        seconds = self._some_seconds()
        what = self.draw.choice(["ALL", "WRITE"])
        self.server.ask("CLIENT", "PAUSE", int(seconds * 1000), what)
        end = time.monotonic() + seconds
        try:
            yield
        finally:
            time.sleep(max(0.0, end - time.monotonic()) + 0.02)

    @contextmanager
    def sleeping(self) -> Iterator[None]:
        """Makes the server compute for a while, during which it does not reply."""
        seconds = self._some_seconds()
        thread = threading.Thread(
            target=self.server.ask, args=("DEBUG", "SLEEP", seconds), kwargs={"seconds": 60.0}
        )
        thread.start()
        time.sleep(0.01)
        try:
            yield
        finally:
            thread.join()

    @contextmanager
    def proxied(self, fault: Fault, most_connections: int = 3) -> Iterator[None]:
        """Applies a fault to open connections, and to some new ones."""
        self.proxy.arm(fault, self.draw.randint(0, most_connections))
        try:
            yield
        finally:
            self.proxy.arm(Fault())

    @contextmanager
    def late(self) -> Iterator[None]:
        """Delays requests of open connections until after the caller's deadline."""
        delay = 1.2 * self.deadline_seconds
        with self.proxied(Fault(delay_seconds=delay), most_connections=0):
            start = time.monotonic()
            yield
            time.sleep(max(0.0, start + delay + 0.1 - time.monotonic()))

    def some_bytes(self, most: int) -> int:
        return int(most * self.draw.random() ** 2)


KINDS = (
    "stopped",
    "killed",
    "paused",
    "busy",
    "slow",
    "trickle",
    "half a reply",
    "half a request",
    "a reply that stalls",
    "a request that comes late",
    "a cluster's node stopped",
    "a cluster's node killed",
    "a part, slow",
    "a part, half a reply",
    "a part, stopped",
)


@contextmanager
def _broken(world: _World, kind: str) -> Iterator[Storage]:
    """Returns the fault, and the storage that it affects."""
    draw = world.draw
    node = draw.choice(world.cluster.servers)
    size = world.some_bytes(_NUM_KEYS * 4 * _DIM)
    faults = {
        "stopped": lambda: world.stopped(world.server),
        "killed": lambda: world.killed(world.server),
        "paused": world.paused,
        "busy": world.sleeping,
        "slow": lambda: world.proxied(Fault(delay_seconds=draw.random() * 0.2)),
        "trickle": lambda: world.proxied(Fault(trickle_seconds=0.01)),
        "half a reply": lambda: world.proxied(Fault(cut_reply_at=size)),
        "half a request": lambda: world.proxied(Fault(cut_request_at=size)),
        "a reply that stalls": lambda: world.proxied(Fault(stall_reply_at=size)),
        "a request that comes late": world.late,
        "a cluster's node stopped": lambda: world.stopped(node),
        "a cluster's node killed": lambda: world.killed(node),
        # Each reply may arrive in time, but not all of them together.
        "a part, slow": lambda: world.proxied(
            Fault(delay_seconds=world.deadline_seconds * (0.2 + 0.2 * draw.random()))
        ),
        "a part, half a reply": lambda: world.proxied(Fault(cut_reply_at=size)),
        "a part, stopped": lambda: world.stopped(world.server),
    }
    storage = world.single
    if kind.startswith("a cluster"):
        storage = world.spread
    elif kind.startswith("a part"):
        storage = world.parted
    with faults[kind]():
        yield storage


class _Book:
    """The expected contents of one storage: row `i` is all ``versions[i]``, or is missing.

    Args:
        is_part: whether the keys are those of `_SHARD`; rows of `others` exist too, and are all zeros.
    """

    def __init__(self, *, is_part: bool = False) -> None:
        keys = np.arange(_NUM_OTHERS, dtype=np.int64) * 7_919 - 1_000_000
        is_mine = _MAP.owners[partition(keys)] == 0
        self.keys = (keys[is_mine] if is_part else keys)[:_NUM_KEYS]
        self.others = keys[~is_mine] if is_part else keys[:0]
        self.versions = np.zeros(_NUM_KEYS, np.float32)

    def rows(self, version: float) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        return np.full((_NUM_KEYS, _DIM), version, np.float32)

    def fill(self, storage: Storage) -> None:
        storage.upsert(self.keys, self.rows(0.0))
        # Each within one deadline.
        for part in np.array_split(self.others, 8):
            storage.upsert(part, np.zeros((len(part), _DIM), np.float32))


def _call(world: _World, storage: Storage, book: _Book, operation: str) -> object:
    """Makes one call; returns its result if it can be checked."""
    if operation == "upsert":
        storage.upsert(book.keys, book.rows(float(book.versions[0]) + 1))
    elif operation == "clear":
        storage.clear()
    elif operation == "open":
        world.open_again()
    elif operation == "find":
        return storage.find(book.keys)
    elif operation == "erase":
        return storage.erase(book.keys[::3])
    elif operation == "size":
        return storage.size
    else:
        return sum(len(chunk) for chunk in storage.scan(max(200, len(book.others))))
    return None


def _trial(world: _World, kind: str, books: dict[int, _Book], counts: Counts) -> None:
    operations = ["upsert", "upsert", "find", "erase", "size", "scan"]
    if kind.startswith("a part"):
        operations += ["size", "clear", "clear", "open"]
    operation = world.draw.choice(operations)
    label = f"{kind}, {operation}"

    def broke(promise: str, what: object) -> None:
        counts.broken.append(f"{promise}: {label}: {what}")

    result: object = None
    failure: BaseException | None = None
    with _broken(world, kind) as storage:
        book = books[id(storage)]
        old = float(book.versions[0])
        start = time.monotonic()
        try:
            result = _call(world, storage, book, operation)
        except (DeadlineError, StorageIOError) as error:
            failure = error
        except Exception as error:
            failure = error
            broke("untyped", repr(error))
        seconds = time.monotonic() - start
        counts.longest_seconds = max(counts.longest_seconds, seconds)
        if operation == "upsert" and failure is not None:
            # While commands of the first call may still be queued in front of the server.
            with suppress(DeadlineError, StorageIOError):
                storage.upsert(book.keys, book.rows(old + _NEXT))
                operation, failure = "upsert after upsert", None
        # A scan makes many requests, each with the deadline.
        if seconds > world.deadline_seconds + _SLACK_SECONDS and operation != "scan":
            broke("late", f"{seconds:.2f} s")

    others = storage.find(book.others)
    if not (others.found.all() and (others.rows == 0).all()):
        broke("silent", "rows of another rank were changed")
    counts.num_trials[kind] += 1
    (counts.num_returned if failure is None else counts.num_raised)[kind] += 1
    if failure is None:
        _check_result(operation, result, old, broke)
    _check_rows(storage, book, operation, failure is None, broke)


def _check_result(
    operation: str, result: object, old: float, broke: Callable[[str, object], None]
) -> None:
    if operation == "find":
        found = result
        if not (found.found.all() and (found.rows == old).all()):  # type: ignore[attr-defined]
            broke("silent", "find returned rows that were not written")
    elif operation == "erase" and result != len(range(0, _NUM_KEYS, 3)):
        broke("silent", f"erase counted {result}")
    elif operation in ("size", "scan") and result != _NUM_KEYS:
        broke("silent", f"{operation} counted {result}")


def _check_rows(
    storage: Storage,
    book: _Book,
    operation: str,
    has_returned: bool,
    broke: Callable[[str, object], None],
) -> None:
    """Checks the rows after the fault, and the effect of further writes."""
    old = float(book.versions[0])
    new = old + 1
    found = storage.find(book.keys)
    is_old = (found.rows == old).all(axis=1) & found.found
    is_new = (found.rows == new).all(axis=1) & found.found
    is_next = (found.rows == old + _NEXT).all(axis=1) & found.found
    if operation == "upsert after upsert":
        is_right = is_next
    elif operation == "upsert":
        is_right = is_new if has_returned else is_old | is_new | is_next
    elif operation == "erase":
        is_right = is_old.copy()
        gone = ~found.found[::3]
        is_right[::3] = gone if has_returned else gone | is_old[::3]
    elif operation == "clear":
        is_right = ~found.found if has_returned else ~found.found | is_old
    else:
        is_right = is_old
    if not is_right.all():
        broke("twice", f"{int((~is_right).sum())} rows are neither old nor new")
    # Repeating the call completes it; delayed commands must not replace the next version.
    storage.upsert(book.keys, book.rows(new))
    if not (storage.find(book.keys).rows == new).all():
        broke("twice", "repeating the call did not complete it")
    storage.upsert(book.keys, book.rows(new + 1))
    time.sleep(0.01)
    last = storage.find(book.keys)
    if not (last.found.all() and (last.rows == new + 1).all()):
        broke("twice", "an older write replaced a newer one")
    book.versions[:] = new + 1


def run_trials(
    num_trials: int,
    *,
    deadline_seconds: float = 2.0,
    seed: int = 0,
    kinds: Sequence[str] = KINDS,
    report: Callable[[str], None] = lambda _: None,
) -> Counts:
    """Runs trials of all kinds alternately.

    Args:
        num_trials: number of trials.
        deadline_seconds: deadline of each call.
        seed: random seed.
        kinds: kinds of faults.
        report: called for each violated promise.
    """
    counts = Counts()
    world = _World(deadline_seconds, random.Random(seed))
    books: dict[int, _Book] = {}
    try:
        for storage in (world.single, world.spread, world.parted):
            books[id(storage)] = _Book(is_part=storage is world.parted)
            books[id(storage)].fill(storage)
        for i in range(num_trials):
            before = len(counts.broken)
            try:
                _trial(world, kinds[i % len(kinds)], books, counts)
            except Exception as error:
                counts.broken.append(f"untyped: {kinds[i % len(kinds)]}, afterwards: {error!r}")
            for line in counts.broken[before:]:
                report(f"trial {i}: {line}")
    finally:
        world.close()
    return counts


def run(trials: int) -> Report:
    """Runs the trials for ``python -m reliability``."""
    from reliability.report import Report

    if reason := redis_server_missing():
        return Report(0, skipped=reason)
    counts = run_trials(trials)
    happened = {f"{kind}: returned": counts.num_returned[kind] for kind in KINDS}
    happened |= {f"{kind}: raised a typed error": counts.num_raised[kind] for kind in KINDS}
    return Report(trials, dict(sorted(happened.items())), counts.broken)


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a promise was violated."""
    parser = argparse.ArgumentParser(prog="python -m reliability.redis_faults")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--deadline-seconds", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON, last")
    given = parser.parse_args(arguments)
    if reason := redis_server_missing():
        print(f"skipped: {reason}")
        return 0
    counts = run_trials(
        given.trials,
        deadline_seconds=given.deadline_seconds,
        seed=given.seed,
        report=lambda line: print(line, flush=True),
    )
    for kind in KINDS:
        print(
            f"{kind:26} {counts.num_trials[kind]:4} trials: {counts.num_returned[kind]:4} returned, "
            f"{counts.num_raised[kind]:4} raised"
        )
    broken = Counter(line.partition(":")[0] for line in counts.broken)
    summary = {"trials": counts.num_trials.total(), **{each: broken[each] for each in _PROMISES}}
    print(
        f"redis faults: {summary['trials']} trials, "
        + ", ".join(f"{broken[each]} {each}" for each in _PROMISES)
        + f"; longest call {counts.longest_seconds:.2f} s, deadline {given.deadline_seconds:g} s"
    )
    if given.json:
        print(json.dumps(summary))
    return 1 if counts.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
