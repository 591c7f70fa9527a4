"""No row is lost between tiers, in Python and in native code.

Tests combine evictions, a lower tier that fails and recovers, concurrent readers and writes, and
updates in place.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from typing import Any, ClassVar

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sparring import _native
from sparring.contracts.storage.results import Keys
from sparring.contracts.storage.storage import Storage
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.errors import CapacityError, DeadlineError, StorageIOError
from sparring.kernels import functions as kernels
from sparring.runtime.events import BackgroundError, EventLoop
from sparring.storage.native import get_capsule
from sparring.storage.open import open_storage
from sparring.storage.update import update_rows
from sparring.updates.builtin import BUILTIN_METHODS
from sparring_tiered import TieredOptions, TieredStorage

from ..faulty_storage import FaultyStorage
from .stacks import memory

TABLE = TableConfig("films", 3, initializer="zeros")
SGD = BUILTIN_METHODS["sgd"]
ADD_ONE = MethodChoice(SGD(), SGD.hyperparameters(lr=1.0), 1)
"""With gradients of -1."""

UNREADABLE = ("lost", "slow")
"""Breakages in which reads fail too."""
HUNG_SECONDS = 0.05

FAILURES = (StorageIOError, DeadlineError, CapacityError)
COUNT = st.integers(0, 30)
VERSIONS = 1_000
"""From one upsert to the next; updates of rows lie between."""


def rows_of(version: int, count: int) -> np.ndarray[Any, Any]:
    return np.full((count, 3), version, np.float32)


class Reader:
    """Reads the kept keys repeatedly, alternately by `find` and in place.

    A version must never decrease.
    """

    def __init__(self, stack: TieredStorage, kept: Keys) -> None:
        self._stack = stack
        self._kept = kept
        self._view = _native.TableView(TABLE.dtype, kernels.initializer_spec(TABLE))
        self._view.attach(get_capsule(stack), 0)
        self._collection = _native.Collection([(self._view, "sum")])
        self._is_over = threading.Event()
        self.complaint: str | None = None
        self.num_reads = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        latest = np.zeros(len(self._kept), np.float32)
        while not self._is_over.wait(0.0002):
            try:
                rows, found = self._read()
            except FAILURES:
                continue
            except Exception as error:
                self.complaint = f"{type(error).__name__}: {error}"
                return
            versions = rows[:, 0].copy()
            if not found.all():
                self.complaint = f"{self._kept[~found]} were not found"
            elif not (rows == versions[:, None]).all():
                self.complaint = "a mixture of two rows was read"
            elif (versions < latest).any():
                self.complaint = f"rows of {self._kept[versions < latest]} went back"
            latest = versions
            self.num_reads += 1

    def _read(self) -> tuple[Any, Any]:
        if self.num_reads % 2:
            count = len(self._kept)
            rows = self._collection.pool(self._kept, np.arange(count + 1), (0,), count)
            return rows, rows[:, 0] != 0  # the initial value
        result = self._stack.find(self._kept)
        return result.rows, result.found

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(10)
        self._view.close()


class StackMachine(RuleBasedStateMachine):
    """A stack over a last tier that breaks, and a dict with its expected contents."""

    scale = 1
    """How many keys there are for each that the rules count."""
    breaks = True
    """Whether the last tier does; otherwise nothing stands between the stack and that tier."""
    num_examples = 30
    needs: ClassVar[tuple[str, ...]] = ()

    def above(self, size: int) -> tuple[str, Storage]:
        return "memory", memory(size, table=TABLE)

    def below(self) -> Storage:
        return memory(table=TABLE)

    def __init__(self) -> None:
        super().__init__()
        self.pool = np.arange(40 * self.scale, dtype=np.int64) * 7 - 100
        # Written at the start and never erased: concurrent readers must find them at any moment.
        self.kept = self.pool[: 10 * self.scale]
        self.places = ExitStack()
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
        self.last = FaultyStorage(self.below())
        self.last.delay_seconds = delay_seconds
        self.last.hung_seconds = HUNG_SECONDS
        last = self.last if self.breaks else self.last.inner
        options = TieredOptions(
            tiers=("memory",) * (len(sizes) + 1),  # type: ignore[arg-type]
            write=write,
            promote=promote,
            buffer_bytes=holding_rows * self.scale * (TABLE.row_bytes + 16),
        )
        self.is_through = write == "through"
        self.stack = TieredStorage(
            TABLE, options, [*(self.above(size) for size in sizes), ("last", last)]
        )
        self.events = EventLoop()
        if is_beside:
            self.stack.use_background(self.events)
        self._write(self.kept)
        self.reader = Reader(self.stack, self.kept)

    @rule(start=COUNT, count=COUNT)
    def upsert(self, start: int, count: int) -> None:
        self._write(self._keys(self.pool, start, count))

    @rule(start=COUNT, count=COUNT)
    def update(self, start: int, count: int) -> None:
        keys = self._keys(self.pool, start, count)
        try:
            changed = update_rows(
                self.stack, keys, np.full((len(keys), 3), -1, np.float32), ADD_ONE
            )
        except FAILURES:
            assert self.last.breakage is not None
            if self.is_through:
                for key in keys.tolist():
                    allowed = self._allowed(key)
                    self.doubtful[key] = allowed | {version + 1 for version in allowed}
            return
        assert changed == len(keys)
        for key in keys.tolist():
            if key in self.doubtful:
                self.doubtful[key] = {version + 1 for version in self.doubtful[key]}
            else:
                self.model[key] = self.model.get(key, 0) + 1

    @rule(start=COUNT, count=COUNT)
    def erase(self, start: int, count: int) -> None:
        keys = self._keys(self.pool[len(self.kept) :], start, count)
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
        keys = self._keys(self.pool, start, count)
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
        if not self.breaks:
            return
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
            self.stack.wait_for_capacity()
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
        assert self.stack.num_buffered_rows == 0
        durable = self._contents(self.last.inner)
        for key in {*durable, *self.model}:
            assert durable.get(key, 0) in self._allowed(key), "a flush left something above"

    @rule(chunk_rows=st.integers(1, 50))
    def scan(self, chunk_rows: int) -> None:
        if self.last.breakage not in UNREADABLE and not self.doubtful:
            assert self._contents(self.stack, chunk_rows) == self.model

    @rule(start=COUNT, count=COUNT, is_update=st.booleans())
    def change_rows_amid_a_scan(self, start: int, count: int, is_update: bool) -> None:
        if self.last.breakage is not None or self.doubtful:
            return
        before = dict(self.model)
        may_be_old = {key for chunk in self.stack.tiers[0].scan() for key in chunk.keys.tolist()}
        chunks = self.stack.scan(3 * self.scale)
        first = next(chunks)
        may_be_old.update(first.keys.tolist())
        (self.update if is_update else self.upsert)(start, count)
        given: set[int] = set()
        for chunk in (first, *chunks):
            for key, version in zip(chunk.keys.tolist(), chunk.rows[:, 0].tolist(), strict=True):
                assert key not in given, f"key {key} was given twice"
                given.add(key)
                allowed = {self.model[key]} | ({before.get(key)} if key in may_be_old else set())
                assert version in allowed, f"an old row of key {key}"
        assert given >= set(before), f"{set(before) - given} are missing"

    @rule(count=st.integers(1, 4))
    def touch(self, count: int) -> None:
        if self.stack.capabilities.touch:
            self.stack.touch(self.pool[: count * self.scale])

    @invariant()
    def readers_beside_saw_nothing_wrong(self) -> None:
        if hasattr(self, "reader"):
            assert self.reader.complaint is None, self.reader.complaint

    @invariant()
    def size_is_exact(self) -> None:
        if hasattr(self, "stack") and self.last.breakage is None and not self.doubtful:
            assert self.stack.size == len(self.model)

    def teardown(self) -> None:
        with self.places:
            self._end()

    def _end(self) -> None:
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
        self.version += VERSIONS
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
        """The option deadline_seconds; long if waits succeed, or a busy machine would fail."""
        self.stack._demotion.write_back.deadline_seconds = seconds

    def _allowed(self, key: int) -> set[int]:
        return self.doubtful.get(key, {self.model.get(key, 0)})

    def _keys(self, pool: Keys, start: int, count: int) -> Keys:
        start, count = start * self.scale, count * self.scale
        return pool[(start + np.arange(count % (len(pool) + 1))) % len(pool)]

    def _contents(self, storage: Storage, chunk_rows: int = 7) -> dict[int, int]:
        held: dict[int, int] = {}
        for chunk in storage.scan(chunk_rows):
            for key, row in zip(chunk.keys.tolist(), chunk.rows[:, 0].tolist(), strict=True):
                assert key not in held, f"key {key} was given twice"
                held[key] = int(row)
        return held


class NativeAbove(StackMachine):
    """Rows of the first tier are read and changed in place."""

    scale = 15
    num_examples = 12
    needs = ("sparring_hkv",)

    def above(self, size: int) -> tuple[str, Storage]:
        made = open_storage("hkv", TABLE, capacity=120 if size < 8 else 240, policy="lru")
        return "hkv", made


class NativeThroughout(NativeAbove):
    """Rows of the lower tiers are read without the interpreter, too."""

    breaks = False

    def below(self) -> Storage:
        return open_storage("hkv", TABLE)


class NativeOverFlash(NativeAbove):
    num_examples = 6
    breaks = False
    needs = ("sparring_hkv", "sparring_rocksdb")

    def below(self) -> Storage:
        folder = self.places.enter_context(tempfile.TemporaryDirectory())
        return open_storage("rocksdb", TABLE, path=folder, write_buffer_bytes=1 << 16)


class NativeOverFlashThatBreaks(NativeOverFlash):
    breaks = True


@pytest.mark.parametrize(
    "machine",
    [StackMachine, NativeAbove, NativeThroughout, NativeOverFlash, NativeOverFlashThatBreaks],
)
def test_every_row_is_found_for_any_failure_of_a_lower_tier(machine: type[StackMachine]) -> None:
    for module in machine.needs:
        distribution = module.replace("_", "-")
        pytest.importorskip(module, reason=f"{distribution} is not installed")
    run: Any = run_state_machine_as_test
    settings = hypothesis.settings(
        max_examples=machine.num_examples,
        stateful_step_count=30,
        deadline=None,
        print_blob=True,
        # A race occurs once in many runs, so there is nothing to shrink.
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run(machine, settings=settings)


def test_a_scan_returns_no_row_from_before_an_update_in_place() -> None:
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    above = {"backend": "hkv", "options": {"capacity": 120, "policy": "lru"}}
    keys = np.arange(600)
    with open_storage("tiered", TABLE, tiers=[above, "memory"]) as stack:
        stack.upsert(keys, rows_of(1, 600))
        chunks = stack.scan(30)
        given = [next(chunks)]
        below = keys[~stack.tiers[0].find(keys).found][::10]
        # They are promoted, some to places that the scan has passed.
        update_rows(stack, below, np.full((len(below), 3), -1, np.float32), ADD_ONE)
        given += chunks
        found = {
            key: version
            for chunk in given
            for key, version in zip(chunk.keys.tolist(), chunk.rows[:, 0].tolist(), strict=True)
        }
    assert sum(map(len, given)) == len(found) == 600
    assert [found[key] for key in below.tolist()] == [2] * len(below)
