"""Simulates a shard with followers under crashes: `python -m reliability follower_crashes`.

The code that decides about leaders and acknowledgements, `sparring_serve.replication.replica`, runs with
a fake clock, a fake store and a fake network that loses, repeats, delays and reorders messages. A trial
stops and crashes replicas at random points, between any two operations, and checks these promises:

kept      an acknowledged push is applied once on every replica at the end
once      no push is applied twice
fenced    a pull that a client accepts contains every push that was acknowledged before the pull began
single    an epoch has one leader
equal     at the end, the logs of all replicas are equal
ends      the shard answers again when the faults have ended

The seed of a trial is its number, so `--trials` repeats the same trials.

The file is long because the faults, the clients and the checks share the state of a trial.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from reliability.report import Report
from sparring.errors import StorageIOError
from sparring_serve.parameters.push_log_files import Base
from sparring_serve.replication.records import (
    LostLogError,
    ReadState,
    ReplicaOptions,
    StoreSteps,
)
from sparring_serve.replication.replica import Replica
from sparring_serve.replication.store import MemoryStore
from sparring_serve.wire.messages import LogPosition, Record, ReplicateRequest

__all__ = ["TRIALS", "run", "run_trial"]

TRIALS = 30_000

_LEASE, _FAULTY_SECONDS, _CALM_SECONDS = 1.0, 5.0, 8.0
_FAULT_SECONDS, _READ_SECONDS = (0.2, 2.5, 4.0), 0.2
_PUSH, _SAVE = 1, 0


class _Log:
    """A log on a disk that survives crashes, with the rows that follow from it."""

    def __init__(self, world: _World) -> None:
        self._world = world
        self.base = (Base(""), 0)
        self.epoch = 0
        self.loading: ReplicateRequest | None = None
        self.records: list[Record] = []
        self.pushes: list[bytes] = []
        """Tokens of all applied pushes, including those in the snapshot."""

    @property
    def end(self) -> LogPosition:
        return LogPosition(self.epoch, self.base[1] + len(self.records))

    def read(self, position: int) -> list[Record]:
        begin = position - self.base[1]
        if begin < 0:
            raise LostLogError
        return self.records[begin : begin + 3]

    def append(self, records: Sequence[Record]) -> None:
        for each in records:
            self._world.may_crash()
            self.records.append(each)
            if each.kind == _PUSH:
                self.pushes.append(bytes(each.payload))

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def drop_before(self, position: int) -> None:
        url = bytes(self.records[position - self.base[1] - 1].payload).decode()
        self.records = self.records[position - self.base[1] :]
        self.base = (Base(url), position)

    def reset(self, base: tuple[Base, int], epoch: int) -> None:
        self.base, self.epoch, self.records = base, epoch, []
        self.pushes = list(self._world.snapshots.get(base[0].url, []))


class _CrashError(Exception):
    pass


@dataclass(slots=True)
class _Process:
    name: str
    log: _Log
    replica: Replica | None = None
    life: int = 0
    """Number of the process; events of an earlier one have no effect."""
    stopped_until: float = 0.0
    cut_until: float = 0.0
    """Time until which it reaches only clients, neither the store nor other replicas."""
    waiting: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    """Epoch and position of pushes that are not acknowledged yet, and their replies."""
    is_saving: bool = False
    is_ending: bool = False
    """Whether it resigns instead of the next renewal, and ends."""


class _World:
    """One trial."""

    def __init__(self, seed: int, replica: type[Replica] = Replica) -> None:
        self.draw = draw = random.Random(seed)
        self.now, self._number = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.store = MemoryStore(lambda: self.now)
        self.snapshots: dict[str, list[bytes]] = {"": []}
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.leaders: dict[int, str] = {}
        self.acknowledged: list[bytes] = []
        self._replica = replica
        self._is_calm = False
        self._is_crashing = 0.0
        self.loss, self.delay = draw.choice([0, 0.05, 0.3]), draw.choice([0.005, 0.03, 0.2])
        names = ["a", "b", "c"][: draw.choice([2, 3, 3])]
        self.flags = draw.random() < 0.5
        """Whether pushes are accepted without a follower."""
        self.processes = {name: _Process(name, _Log(self)) for name in names}
        for each in self.processes.values():
            self.start(each)

    # -- events

    def at(self, delay: float, run: Callable[[], None], process: _Process | None = None) -> None:
        """Runs a function later, unless the process has ended; a stopped process runs it when it
        continues."""
        life = None if process is None else process.life

        def guarded() -> None:
            if process is not None:
                if process.life != life or process.replica is None:
                    return
                if self.now < process.stopped_until:
                    # Threads and connections of a process that continues have no order.
                    pause = process.stopped_until - self.now + self.draw.uniform(0, 0.05)
                    self.at(pause, run, process)
                    return
                try:
                    run()
                except _CrashError:
                    self.crash(process)
                return
            run()

        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, guarded))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, run = heapq.heappop(self._events)
            run()
        self.now = until

    def send(self, run: Callable[[], None], process: _Process | None = None) -> None:
        """Delivers a message: late, never, or twice."""
        loss = 0.0 if self._is_calm else self.loss
        for _ in range(2 if self.draw.random() < loss / 2 else 1):
            if self.draw.random() >= loss:
                delay = 0.005 if self._is_calm else self.delay
                self.at(self.draw.expovariate(1 / delay), run, process)

    def may_crash(self) -> None:
        if self.draw.random() < self._is_crashing:
            raise _CrashError

    def fail(self, promise: str, why: str) -> None:
        self.failures.append(f"{promise}: {why} at {self.now:.3f} s")

    # -- processes

    def start(self, process: _Process) -> None:
        process.life += 1
        process.waiting, process.is_saving, process.is_ending = [], False, False
        others = [each for each in self.processes if each != process.name]
        # Clocks have different rates.
        rate = 1 + self.draw.uniform(-0.02, 0.02)
        options = ReplicaOptions(_LEASE, is_first=process.name == "a")
        process.replica = self._replica(
            process.name, others, process.log, options, lambda: self.now * rate
        )
        self.at(self.draw.uniform(0, 0.1), lambda: self.tick(process), process)
        for each in others:
            follower = self.processes[each]
            self.at(0.0, partial(self.replicate, process, follower), process)

    def crash(self, process: _Process, what: str = "crashes") -> None:
        if process.replica is None:
            return
        self.counts[what] += 1
        process.replica = None
        process.life += 1
        self.at(self.draw.choice([0.01, 0.3, 2.5]), lambda: self.start(process))

    def stop(self, process: _Process) -> None:
        self.counts["stops"] += 1
        process.stopped_until = self.now + self.draw.choice(_FAULT_SECONDS)

    def tick(self, process: _Process) -> None:
        replica = process.replica
        assert replica is not None
        if process.is_ending or replica.is_renewal_due():
            steps = replica.resign() if process.is_ending else replica.tick()
            self._step(process, steps, None, is_last=process.is_ending)
        else:
            self.at(_LEASE / 10, lambda: self.tick(process), process)

    def _step(self, process: _Process, steps: StoreSteps, result: Any, *, is_last: bool) -> None:
        """Runs the steps of a tick up to the next operation on the store."""
        try:
            asked = steps.throw(result) if isinstance(result, Exception) else steps.send(result)
        except (StopIteration, StorageIOError):
            if is_last:
                self.crash(process, "ends")
                return
            self._note_leader(process)
            self.at(_LEASE / 10, lambda: self.tick(process), process)
            return

        def operate() -> None:
            fate = 1.0 if self._is_calm else self.draw.random()
            found: Any = StorageIOError("no store")
            if fate > 0.01 and self.now >= process.cut_until:
                found = (
                    self.store.read("shard")
                    if isinstance(asked, ReadState)
                    else self.store.replace("shard", asked.before, asked.after)
                )
            if 0.01 < fate < 0.03:
                found = StorageIOError("the reply of the store was lost")
            self.at(
                self.draw.uniform(0, 0.02),
                lambda: self._step(process, steps, found, is_last=is_last),
                process,
            )

        # The operation takes place even if the process crashes in the meantime.
        self.at(self.draw.uniform(0, 0.02), operate)

    def _note_leader(self, process: _Process) -> None:
        replica = process.replica
        if replica is not None and replica.serves():
            leader = self.leaders.setdefault(replica.epoch, process.name)
            if leader != process.name:
                self.fail("single", f"{leader} and {process.name} lead epoch {replica.epoch}")

    def replicate(self, process: _Process, follower: _Process) -> None:
        """One exchange of a leader with a follower; then the next."""
        replica = process.replica
        assert replica is not None
        request = replica.request_for(follower.name)
        if request is None:
            self.at(0.1, lambda: self.replicate(process, follower), process)
            return
        is_over = False

        def end(reply: Any) -> None:
            nonlocal is_over
            replica.take_reply(follower.name, request, reply)
            self.acknowledge(process)
            if not is_over:
                is_over = True
                has_more = replica.is_leader and replica.lag() > 0
                self.at(
                    0.01 if has_more else 0.1, lambda: self.replicate(process, follower), process
                )

        def receive() -> None:
            if self.now < max(process.cut_until, follower.cut_until):
                return
            assert follower.replica is not None
            reply = follower.replica.replicate(request)
            self._reset(follower)
            self.send(lambda: end(reply), process)

        def lose() -> None:
            if not is_over:
                end(None)

        self.send(lambda: self.at(0.0, receive, follower))
        self.at(0.5, lose, process)

    def _reset(self, follower: _Process) -> None:
        replica = follower.replica
        assert replica is not None
        request = replica.resetting
        if request is None or follower.log.loading is request:
            return
        follower.log.loading = request
        follower.log.reset((Base(""), 0), 0)
        self.counts["resets"] += 1

        def finish(request: ReplicateRequest = request) -> None:
            follower.log.reset((Base(request.base), request.kept_from), request.epoch)
            replica.finish_reset()

        self.at(self.draw.uniform(0, 0.3), finish, follower)

    # -- clients

    def acknowledge(self, process: _Process) -> None:
        """Sends the replies of pushes that all followers in sync have."""
        replica = process.replica
        if replica is None:
            return
        left = []
        for epoch, position, answer in process.waiting:
            if replica.epoch != epoch or not replica.is_leader:
                continue
            if replica.is_replicated(position) and replica.serves():
                if self.flags or replica.num_followers:
                    answer()
            else:
                left.append((epoch, position, answer))
        process.waiting = left

    def push(
        self, token: bytes, process: _Process, epoch: int, reply: Callable[[int], None]
    ) -> None:
        """Calls `reply` with the epoch; 0 if the replica refuses."""
        replica = process.replica
        assert replica is not None
        replica.note_epoch(epoch)
        if not replica.serves() or not (self.flags or replica.num_followers):
            self.send(lambda: reply(0))
            return
        log = process.log
        if token not in log.pushes:
            log.append([Record(_PUSH, token)])
        own = replica.epoch
        process.waiting.append((own, log.end.position, lambda: self.send(lambda: reply(own))))
        self.acknowledge(process)

    def pull(self, process: _Process, epoch: int, reply: Callable[[int, set[bytes]], None]) -> None:
        """Calls `reply` with the epoch and the pushes in the rows; 0 if the replica refuses."""
        replica = process.replica
        assert replica is not None
        replica.note_epoch(epoch)
        if not replica.serves():
            self.send(lambda: reply(0, set()))
            return
        rows, own = set(process.log.pushes), replica.epoch

        def end() -> None:
            is_leader = replica.serves() and replica.epoch == own
            self.send(lambda: reply(own if is_leader else 0, rows))

        # The process may be stopped during the work.
        self.at(self.draw.uniform(0, 0.05), end, process)

    def save(self, process: _Process) -> None:
        replica = process.replica
        if replica is None or not replica.serves() or process.is_saving:
            return
        log = process.log
        url = f"s{len(self.snapshots)}"
        self.snapshots[url] = list(log.pushes)
        log.append([Record(_SAVE, url.encode())])
        position, process.is_saving, own = log.end.position, True, replica.epoch

        def commit() -> None:
            process.is_saving = False
            if replica.is_leader and replica.epoch == own:
                self.counts["saves"] += 1
                log.drop_before(position)

        self.at(self.draw.uniform(0, 0.5), commit, process)

    def client(self, name: str, until: float) -> None:
        """Pushes and pulls one after the other, with the same token until it is acknowledged."""
        known, number = 0, 0
        draw, replicas = self.draw, list(self.processes.values())
        chosen = draw.choice(replicas)

        def call(start: Callable[..., None], take: Callable[..., None]) -> None:
            """Calls replicas until it accepts a reply."""
            is_done = False

            def attempt() -> None:
                is_over = False

                def retry() -> None:
                    nonlocal is_over, chosen
                    if not (is_over or is_done):
                        is_over, chosen = True, draw.choice(replicas)
                        attempt()

                def accept(epoch: int, *values: set[bytes]) -> None:
                    nonlocal known, is_done
                    if epoch == 0 or epoch < known:
                        self.at(0.03, retry)
                    elif not is_done:
                        known, is_done = epoch, True
                        take(epoch, *values)
                        proceed()

                process, epoch = chosen, known
                self.send(lambda: self.at(0.0, lambda: start(process, epoch, accept), process))
                self.at(0.3, retry)

            attempt()

        def proceed() -> None:
            nonlocal number
            if self.now > until:
                return
            if draw.random() < 0.5:
                before = list(self.acknowledged)
                call(self.pull, partial(self.check_pull, before))
                return
            number += 1
            token = b"%s%d" % (name.encode(), number)
            call(partial(self.push, token), lambda _: self.accept_push(token))

        self.at(draw.uniform(0, 1), proceed)

    def accept_push(self, token: bytes) -> None:
        self.counts["pushes"] += 1
        self.acknowledged.append(token)

    def read(self, until: float) -> None:
        """Pulls again and again, each time as a new client, which knows no epoch and therefore accepts
        a reply of any leader."""
        before = list(self.acknowledged)

        def accept(epoch: int, rows: set[bytes]) -> None:
            if epoch:
                self.check_pull(before, epoch, rows)

        process = self.draw.choice(list(self.processes.values()))
        self.send(lambda: self.at(0.0, lambda: self.pull(process, 0, accept), process))
        if self.now < until:
            self.at(self.draw.uniform(0, _READ_SECONDS), lambda: self.read(until))

    def check_pull(self, before: Sequence[bytes], epoch: int, rows: set[bytes]) -> None:
        self.counts["pulls"] += 1
        if missing := set(before) - rows:
            self.fail("fenced", f"a pull of epoch {epoch} lacks {sorted(missing)}")

    # -- the trial

    def inject(self) -> None:
        processes = list(self.processes.values())
        leading = [each for each in processes if each.replica and each.replica.is_leader]
        process = self.draw.choice(leading or processes)
        if self.draw.random() < 0.4:
            process = self.draw.choice(processes)
        what = self.draw.random()
        if what < 0.3:
            self.crash(process)
        elif what < 0.5:
            self.stop(process)
        elif what < 0.7:
            self.counts["cuts"] += 1
            process.cut_until = self.now + self.draw.choice(_FAULT_SECONDS)
        elif what < 0.8:
            process.is_ending = True
        else:
            self.at(0.0, lambda: self.save(process), process)

    def check(self) -> None:
        leading = [
            each for each in self.processes.values() if each.replica and each.replica.serves()
        ]
        if len(leading) != 1:
            self.fail("ends", f"{len(leading)} replicas lead at the end")
            return
        [leader] = leading
        applied = Counter(leader.log.pushes)
        for token in self.acknowledged:
            if not applied[token]:
                self.fail("kept", f"{token!r} was acknowledged and is lost")
        for token, count in applied.items():
            if count > 1:
                self.fail("once", f"{token!r} was applied {count} times")
        for each in self.processes.values():
            if (each.log.end, each.log.pushes) != (leader.log.end, leader.log.pushes):
                self.fail("equal", f"{each.name} differs from its leader {leader.name}")


def run_trial(seed: int, replica: type[Replica] = Replica) -> _World:
    """Runs one trial and returns its world, with `failures`.

    Args:
        seed: Seed of all random choices.
        replica: Class to test, so that a test can break it.
    """
    world = _World(seed, replica)
    world._is_crashing = world.draw.choice([0.0, 0.02])
    for name in ("x", "y")[: world.draw.choice([1, 2])]:
        world.client(name, _FAULTY_SECONDS + 2)
    for _ in range(world.draw.randrange(1, 8)):
        world.at(world.draw.uniform(0.5, _FAULTY_SECONDS), world.inject)
    world.read(_FAULTY_SECONDS + 2)
    world.run(_FAULTY_SECONDS)
    world._is_calm, world._is_crashing = True, 0.0
    world.run(_FAULTY_SECONDS + _CALM_SECONDS)
    world.check()
    return world


def run(trials: int) -> Report:
    """Runs the trials and returns a report."""
    counts: Counter[str] = Counter()
    failures = []
    for seed in range(trials):
        world = run_trial(seed)
        counts.update(world.counts)
        failures += [f"seed {seed}: {each}" for each in world.failures]
    return Report(trials, dict(counts), failures)
