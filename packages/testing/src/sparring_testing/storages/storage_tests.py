"""The suite that a backend author inherits."""

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
    """Every promise of the storage contract. Inherit it, and say how to open a storage.

    Required: the fixture `make_storage`.
    Where it applies: `bounded_options`, and the fixture `reopen_storage`.
    """

    bounded_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """For each policy that a bounded storage may have: the options for `make_storage` that open
    one of some hundred rows. The policies ``none``, ``lru``, ``lfu`` and ``custom`` have tests
    of their own; others get the tests that hold for any."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if _GUARD in vars(cls):
            raise TypeError(f"{cls.__name__} overrides {_GUARD}, which guards all others")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "bounded_policy" in metafunc.fixturenames:
            skip = pytest.mark.skip(
                reason="bounded_options is empty: this backend has no bounded storages"
            )
            metafunc.parametrize(
                "bounded_policy",
                list(self.bounded_options) or [pytest.param("absent", marks=skip)],
            )

    # -- what a backend author gives -----------------------------------------

    @pytest.fixture
    def make_storage(self) -> MakeStorage:
        """Required: a callable ``(table, **options) -> Storage``.

        Each call opens a fresh, empty storage with room for a million rows, unless options
        bound it. The kit closes it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture make_storage: a callable "
            "(table: TableConfig, **options) that opens a fresh, empty storage"
        )

    @pytest.fixture
    def reopen_storage(self) -> ReopenStorage:
        """For persistent backends: a callable that takes a closed storage, as `make_storage`
        gave it, and opens what it held."""

        def fail(storage: Storage) -> Storage:
            raise NotImplementedError(
                f"{type(storage).__name__} declares persistent=True, so {type(self).__name__} "
                "must define the fixture reopen_storage: a callable (closed: Storage) that opens "
                "a storage on the same data"
            )

        return fail

    @pytest.fixture
    def estimate(self) -> Estimate | None:
        """For backends whose descriptor has `estimate_bytes`: a callable ``(storage, rows)`` that
        gives the estimate for the table and the options of a storage that `make_storage` opened."""
        return None

    # -- what the tests take -------------------------------------------------

    @pytest.fixture
    def rng(self, pytestconfig: pytest.Config) -> np.random.Generator:
        """Random numbers that a failed test can be repeated with."""
        seed = pytestconfig.getoption("--sparring-seed", default=None)
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        print(f"to repeat this test: --sparring-seed={seed}")  # pytest shows it on failure
        return np.random.default_rng(seed)

    @pytest.fixture
    def new_storage(self, make_storage: MakeStorage) -> Iterator[MakeStorage]:
        """`make_storage`, checked, and closed at the end of the test."""
        opened: list[Storage] = []

        def open_new(table: TableConfig, **options: Any) -> Storage:
            storage = make_storage(table, **options)
            opened.append(storage)
            assert storage.table == table, "make_storage must pass the table on"
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
        """`reopen_storage`, closed at the end; skips where nothing is persistent."""
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
        """Opens a bounded storage of a named policy; skips where there is none."""

        def open_policy(policy: str) -> Storage:
            options = self.bounded_options.get(policy)
            if options is None:
                pytest.skip(f"bounded_options has no {policy!r}: this backend does not offer it")
            storage = new_storage(make_table(), **options)
            capacity = storage.capacity
            assert capacity is not None, f"bounded_options[{policy!r}] opened no bounded storage"
            assert 16 <= capacity <= _MAX_CAPACITY, (
                f"bounded_options[{policy!r}] holds {capacity} rows; the kit fills it many times, "
                f"so give 16 to {_MAX_CAPACITY}, best some hundred"
            )
            return storage

        return open_policy

    @pytest.fixture
    def bounded_storage(self, bounded_policy: str, open_bounded: OpenBounded) -> Storage:
        """A bounded storage, of each policy in turn."""
        return open_bounded(bounded_policy)

    @pytest.fixture
    def given_scores_storage(self, open_bounded: OpenBounded, storage: Storage) -> Storage:
        """A storage that takes the caller's scores."""
        if storage.capabilities.scores == "given":
            return storage
        if "custom" in self.bounded_options:
            return open_bounded("custom")
        pytest.skip(f"no storage with scores='given' (found {storage.capabilities.scores!r})")

    # -- the guard -----------------------------------------------------------

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), StorageTests)
        assert not violations, "\n".join(violations)
