"""No row is lost on its way: evictions, a lower tier that fails and comes back, readers and writes
beside."""

from __future__ import annotations

import threading
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sparring.errors import CapacityError, DeadlineError, StorageIOError
from sparring.events import BackgroundError, EventLoop
from sparring.storage.contract import Keys, Storage
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring.storage.tiered import TieredOptions, TieredStorage
from sparring.table import TableConfig

from .faulty_storage import FaultyStorage

TABLE = TableConfig("films", 3)
POOL = np.arange(40, dtype=np.int64) * 7 - 100
KEPT = POOL[:10]
"""Written at the start and never erased: readers beside must find them at any moment."""

UNREADABLE = ("lost", "slow")
"""Breakages in which reads fail too."""
HUNG_SECONDS = 0.05

FAILURES = (StorageIOError, DeadlineError, CapacityError)
COUNT = st.integers(0, 30)


def memory(capacity: int | None = None, policy: str = "none") -> Storage:
    return MemoryStorage(TABLE, MemoryOptions(capacity=capacity, policy=policy))


def rows_of(version: int, count: int) -> np.ndarray[Any, Any]:
    return np.full((count, 3), version, np.float32)


class Reader:
    """Finds the kept keys again and again; a version must never go back."""

    def __init__(self, stack: TieredStorage) -> None:
        self._stack = stack
        self._is_over = threading.Event()
        self.complaint: str | None = None
        self.num_reads = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        latest = np.zeros(len(KEPT), np.float32)
        while not self._is_over.wait(0.0002):
            try:
                result = self._stack.find(KEPT)
            except FAILURES:
                continue
            except Exception as error:
                self.complaint = f"{type(error).__name__}: {error}"
                return
            versions = result.rows[:, 0].copy()
            if not result.found.all():
                self.complaint = f"{KEPT[~result.found]} were not found"
            elif not (result.rows == versions[:, None]).all():
                self.complaint = "a mixture of two rows was read"
            elif (versions < latest).any():
                self.complaint = f"rows of {KEPT[versions < latest]} went back"
            latest = versions
            self.num_reads += 1

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(10)


class StackMachine(RuleBasedStateMachine):
    """A stack beside the dict that it should equal, over a last tier that breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[int, int] = {}
        self.doubtful: dict[int, set[int]] = {}
        self.version = 0
        self.has_broken = False

    @initialize(
        sizes=st.sampled_from([(6,), (3, 8), (8, 3)]),
        write=st.sampled_from(["back", "through"]),
        promote=st.sampled_from(["always", "second_touch", "never"]),
        holding_rows=st.sampled_from([4, 64]),
        delay_seconds=st.sampled_from([0.0, 0.002]),
        is_beside=st.sampled_from([True, True, False]),
    )
    def open(
        self,
        sizes: tuple[int, ...],
        write: Any,
        promote: Any,
        holding_rows: int,
        delay_seconds: float,
        is_beside: bool,
    ) -> None:
        self.last = FaultyStorage(memory())
        self.last.delay_seconds = delay_seconds
        self.last.hung_seconds = HUNG_SECONDS
        tiers = [("memory", memory(size, "lru")) for size in sizes]
        options = TieredOptions(
            tiers=("memory",) * (len(sizes) + 1),  # type: ignore[arg-type]
            write=write,
            promote=promote,
            holding_bytes=holding_rows * (TABLE.row_bytes + 16),
        )
        self.is_through = write == "through"
        self.stack = TieredStorage(TABLE, options, [*tiers, ("faulty", self.last)])
        self.events = EventLoop()
        if is_beside:
            self.stack.use_background(self.events)
        self._write(KEPT)
        self.reader = Reader(self.stack)

    @rule(start=COUNT, count=COUNT)
    def upsert(self, start: int, count: int) -> None:
        self._write(self._keys(POOL, start, count))

    @rule(start=COUNT, count=COUNT)
    def erase(self, start: int, count: int) -> None:
        keys = self._keys(POOL[len(KEPT) :], start, count)
        try:
            erased = self.stack.erase(keys)
        except FAILURES:
            assert self.last.breakage is not None
            for key in keys.tolist():
                self.doubtful.setdefault(key, {self.model.get(key, 0)}).add(0)
            return
        if not self.doubtful:
            assert erased == sum(key in self.model for key in keys.tolist())
        for key in keys.tolist():
            self.model.pop(key, None)
            self.doubtful.pop(key, None)

    @rule(start=COUNT, count=COUNT)
    def find(self, start: int, count: int) -> None:
        keys = self._keys(POOL, start, count)
        try:
            result = self.stack.find(keys)
        except FAILURES:
            assert self.last.breakage in UNREADABLE
            return
        for key, row, found in zip(
            keys.tolist(), result.rows[:, 0].tolist(), result.found.tolist(), strict=True
        ):
            version = int(row) if found else 0
            assert version in self._allowed(key), f"key {key}"

    @rule(breakage=st.sampled_from(["writes", "halfway", "lost", "slow", "hung", "hung"]))
    def break_the_last_tier(self, breakage: str) -> None:
        self._wait_at_most(HUNG_SECONDS / 2)
        self.has_broken = True
        self.last.breakage = breakage

    @rule()
    def mend_the_last_tier(self) -> None:
        self.last.breakage = None
        self.events.drain()
        self._wait_at_most(30)
        for key in list(self.doubtful):
            result = self.stack.find([key])
            version = int(result.rows[0, 0]) if result.found[0] else 0
            assert version in self.doubtful.pop(key)
            if version:
                self.model[key] = version
            else:
                self.model.pop(key, None)

    @rule()
    def begin_a_step(self) -> None:
        try:
            self.events.check()
        except BackgroundError:
            assert self.has_broken
            self.has_broken = self.last.breakage is not None
        try:
            self.stack.wait_for_room()
        except FAILURES:
            assert self.last.breakage is not None

    @rule()
    def let_what_goes_on_beside_end(self) -> None:
        self.events.drain()

    @rule()
    def flush(self) -> None:
        try:
            self.stack.flush()
        except FAILURES:
            assert self.last.breakage is not None
            return
        assert self.stack.num_held == 0
        durable = self._contents(self.last.inner)
        for key in {*durable, *self.model}:
            assert durable.get(key, 0) in self._allowed(key), "a flush left something above"

    @rule(chunk_rows=st.integers(1, 50))
    def scan(self, chunk_rows: int) -> None:
        if self.last.breakage not in UNREADABLE and not self.doubtful:
            assert self._contents(self.stack, chunk_rows) == self.model

    @rule(count=st.integers(1, 4))
    def touch(self, count: int) -> None:
        self.stack.touch(POOL[:count])

    @invariant()
    def readers_beside_saw_nothing_wrong(self) -> None:
        if hasattr(self, "reader"):
            assert self.reader.complaint is None, self.reader.complaint

    @invariant()
    def size_is_exact(self) -> None:
        if hasattr(self, "stack") and self.last.breakage is None and not self.doubtful:
            assert self.stack.size == len(self.model)

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        try:
            self.mend_the_last_tier()
            assert self._contents(self.stack) == self.model
            self.stack.flush()
            assert self._contents(self.last.inner) == self.model
        finally:
            self.reader.end()
            self.stack.close()
            try:
                self.events.close()
            except BackgroundError:
                assert self.has_broken
        assert self.reader.complaint is None, self.reader.complaint

    def _write(self, keys: Keys) -> None:
        self.version += 1
        try:
            evicted = self.stack.upsert(keys, rows_of(self.version, len(keys)))
        except FAILURES:
            assert self.last.breakage is not None
            if self.is_through:
                for key in keys.tolist():
                    allowed = self.doubtful.setdefault(key, {self.model.get(key, 0)})
                    allowed.add(self.version)
            return
        assert len(evicted) == 0
        for key in keys.tolist():
            self.model[key] = self.version
            self.doubtful.pop(key, None)

    def _wait_at_most(self, seconds: float) -> None:
        """As the option deadline_seconds; long where waits end well, or a busy machine would fail."""
        self.stack._descent.write_back.deadline_seconds = seconds

    def _allowed(self, key: int) -> set[int]:
        return self.doubtful.get(key, {self.model.get(key, 0)})

    def _keys(self, pool: Keys, start: int, count: int) -> Keys:
        return pool[(start + np.arange(count % (len(pool) + 1))) % len(pool)]

    def _contents(self, storage: Storage, chunk_rows: int = 7) -> dict[int, int]:
        held: dict[int, int] = {}
        for chunk in storage.scan(chunk_rows):
            for key, row in zip(chunk.keys.tolist(), chunk.rows[:, 0].tolist(), strict=True):
                assert key not in held, f"key {key} was given twice"
                held[key] = int(row)
        return held


def test_every_row_is_found_whatever_fails_below() -> None:
    run: Any = run_state_machine_as_test
    settings = hypothesis.settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        print_blob=True,
        # A race shows once in many runs, so there is nothing to shrink.
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run(StackMachine, settings=settings)
