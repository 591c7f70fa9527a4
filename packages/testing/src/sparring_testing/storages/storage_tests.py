"""The conformance kit for storage backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from sparring.contracts import Storage, TableConfig
from sparring_testing.guard import find_violations
from sparring_testing.native.native_handle import NativeHandleTests
from sparring_testing.native.row_handles import RowHandleTests
from sparring_testing.references.samples import MakeStorage, make_table
from sparring_testing.storages.bounded import BoundedTests
from sparring_testing.storages.capabilities import CapabilityTests, Estimate
from sparring_testing.storages.eviction import EvictionTests
from sparring_testing.storages.lifecycle import LifecycleTests, ReopenStorage
from sparring_testing.storages.machine import StateMachineTests
from sparring_testing.storages.ownership import OwnershipTests
from sparring_testing.storages.policies import OpenBounded, PolicyTests
from sparring_testing.storages.reads import ReadingTests
from sparring_testing.storages.refusal import RejectionTests
from sparring_testing.storages.scans import ScanTests
from sparring_testing.storages.scores import ScoreTests
from sparring_testing.storages.sizes import SizeTests
from sparring_testing.storages.threads import ThreadTests
from sparring_testing.storages.updates import UpdateTests
from sparring_testing.storages.values import ValueTests
from sparring_testing.storages.writes import WritingTests

__all__ = ["StorageTests"]

_GUARD = "test_no_standard_test_is_removed_or_overridden_without_a_reason"
_MAX_CAPACITY = 65_536


class StorageTests(
    ReadingTests,
    WritingTests,
    UpdateTests,
    ValueTests,
    SizeTests,
    ScanTests,
    OwnershipTests,
    RejectionTests,
    LifecycleTests,
    CapabilityTests,
    ScoreTests,
    BoundedTests,
    EvictionTests,
    PolicyTests,
    ThreadTests,
    NativeHandleTests,
    RowHandleTests,
    StateMachineTests,
):
    """Tests every promise of the storage contract.

    A subclass must define the fixture `make_storage`. If the backend has bounded storages, set
    `bounded_options`; if it is persistent, define the fixture `reopen_storage`.
    """

    bounded_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Policy → options with which `make_storage` opens a bounded storage of a few hundred rows. The
    policies ``none``, ``lru``, ``lfu`` and ``custom`` have specific tests; all policies run the tests
    that hold for every policy."""

    repeats_are_slow: ClassVar[bool] = False
    """Whether only the first set of parameters of each test is in a short run: the others get the mark
    ``slow``, which your project must register."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if _GUARD in vars(cls):
            raise TypeError(
                f"{cls.__name__} overrides {_GUARD}, which protects all other tests; delete the override"
            )

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "bounded_policy" in metafunc.fixturenames:
            skip = pytest.mark.skip(
                reason="bounded_options is empty: this backend has no bounded storages"
            )
            metafunc.parametrize(
                "bounded_policy",
                list(self.bounded_options) or [pytest.param("absent", marks=skip)],
            )

    # -- fixtures that a backend author defines ------------------------------

    @pytest.fixture
    def make_storage(self) -> MakeStorage:
        """Required: a callable ``(table, **options) -> Storage``.

        Each call opens an empty storage with capacity for a million rows, unless the options limit it.
        The kit closes it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture make_storage: a callable "
            "(table: TableConfig, **options) that opens an empty storage"
        )

    @pytest.fixture
    def reopen_storage(self) -> ReopenStorage:
        """Required for persistent backends: a callable that takes a closed storage that `make_storage`
        opened, and opens a storage with the same data."""

        def fail(storage: Storage) -> Storage:
            raise NotImplementedError(
                f"{type(storage).__name__} declares persistent=True, so {type(self).__name__} "
                "must define the fixture reopen_storage: a callable (closed: Storage) that opens "
                "a storage on the same data"
            )

        return fail

    @pytest.fixture
    def estimate(self) -> Estimate | None:
        """Required if the descriptor has `estimate_bytes`: a callable ``(storage, rows)``.

        It returns the estimate for the table and options of a storage that `make_storage` opened.
        """
        return None

    # -- fixtures that the tests use -----------------------------------------

    @pytest.fixture
    def rng(self, pytestconfig: pytest.Config) -> np.random.Generator:
        """Random number generator with a seed that a failed test prints."""
        seed = pytestconfig.getoption("--sparring-seed", default=None)
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        print(f"to repeat this test: --sparring-seed={seed}")  # pytest shows it on failure
        return np.random.default_rng(seed)

    @pytest.fixture
    def new_storage(self, make_storage: MakeStorage) -> Iterator[MakeStorage]:
        """`make_storage` with checks. The storages are closed at the end of the test."""
        opened: list[Storage] = []

        def open_new(table: TableConfig, **options: Any) -> Storage:
            storage = make_storage(table, **options)
            opened.append(storage)
            assert storage.table == table, "make_storage must pass the table to the storage"
            assert storage.size == 0, "make_storage must open an empty storage"
            return storage

        yield open_new
        for storage in opened:
            storage.close()

    @pytest.fixture
    def storage(self, new_storage: MakeStorage) -> Storage:
        """An empty storage of four float32 columns."""
        return new_storage(make_table())

    @pytest.fixture
    def reopen(
        self, storage: Storage, reopen_storage: ReopenStorage
    ) -> Iterator[Callable[[Storage], Storage]]:
        """Calls `reopen_storage`, and closes the storages later. Skips if they are not persistent."""
        if not storage.capabilities.persistent:
            pytest.skip("this storage declares persistent=False")
        opened: list[Storage] = []

        def open_again(closed: Storage) -> Storage:
            opened.append(reopen_storage(closed))
            return opened[-1]

        yield open_again
        for again in opened:
            again.close()

    @pytest.fixture
    def open_bounded(self, new_storage: MakeStorage) -> OpenBounded:
        """Opens a bounded storage with the given policy; skips the test if there is none."""

        def open_policy(policy: str) -> Storage:
            options = self.bounded_options.get(policy)
            if options is None:
                pytest.skip(f"bounded_options has no {policy!r}: this backend does not support it")
            storage = new_storage(make_table(), **options)
            capacity = storage.capacity
            assert capacity is not None, f"bounded_options[{policy!r}] opened an unbounded storage"
            assert 16 <= capacity <= _MAX_CAPACITY, (
                f"bounded_options[{policy!r}] opened a capacity of {capacity} rows; use 16 to "
                f"{_MAX_CAPACITY}, preferably a few hundred, because the kit fills it many times"
            )
            return storage

        return open_policy

    @pytest.fixture
    def bounded_storage(self, bounded_policy: str, open_bounded: OpenBounded) -> Storage:
        """A bounded storage, for each policy in turn."""
        return open_bounded(bounded_policy)

    @pytest.fixture
    def given_scores_storage(self, open_bounded: OpenBounded, storage: Storage) -> Storage:
        """A storage that accepts scores from the caller."""
        if storage.capabilities.scores == "given":
            return storage
        if "custom" in self.bounded_options:
            return open_bounded("custom")
        pytest.skip(f"no storage with scores='given' (found {storage.capabilities.scores!r})")

    # -- the guard -----------------------------------------------------------

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), StorageTests)
        assert not violations, "\n".join(violations)
