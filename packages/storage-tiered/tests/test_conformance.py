"""Runs the kit for storages on stacks of several backends, which are storages, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sparring import EventLoop, open_storage
from sparring.contracts import Storage, TableConfig
from sparring_testing.guard import overrides_kit
from sparring_testing.storages import sizes
from sparring_testing.storages.storage_tests import StorageTests

needs_hkv = pytest.mark.skipif(
    find_spec("sparring_hkv") is None, reason="sparring-hkv is not installed"
)
needs_sqlite = pytest.mark.skipif(
    find_spec("sparring_sqlite") is None, reason="the template backend is not installed"
)

SMALL = {"backend": "hkv", "options": {"capacity": 480}}
ON_DEVICE = {
    "backend": "hkv",
    "options": {"device": "emulated", "capacity": 480, "policy": "lru"},
}
SMALLER = {"backend": "hkv", "options": {"capacity": 120, "policy": "lfu"}}

MakeStorage = Callable[..., Storage]


def stack_of(table: TableConfig, *tiers: Any, **options: Any) -> Storage:
    return open_storage("tiered", table, tiers=list(tiers), **options)


class TestMemoryOverMemory(StorageTests):
    """No native tier: every row is moved in Python."""

    @pytest.fixture
    def make_storage(self) -> MakeStorage:
        small = {"backend": "memory", "options": {"capacity": 480}}
        return lambda table, **options: stack_of(table, small, "memory", **options)

    @pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
    @overrides_kit(reason="Python moves each row, which takes 15 seconds for a million")
    def test_call_of_a_million_rows(
        self, new_storage: Any, rng: Any, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        monkeypatch.setattr(sizes, "_MILLION", count)
        super().test_call_of_a_million_rows(new_storage, rng)


@needs_hkv
@pytest.mark.long  # in short runs, other stacks cover its parts
class TestHkvOverMemory(StorageTests):
    @pytest.fixture
    def make_storage(self) -> MakeStorage:
        return lambda table, **options: stack_of(table, SMALL, "memory", **options)


@pytest.mark.slow  # sparring-hkv runs the kit on the emulator, and gpu.yaml trains with this stack
@pytest.mark.skipif(
    find_spec("sparring_hkv") is None or find_spec("sparring_hkv._emulated") is None,
    reason="sparring-hkv was built without the emulator (-DSPARRING_HKV_EMULATED=ON)",
)
class TestHkvOnADeviceOverHkv(StorageTests):
    """As on a GPU: hot rows there, all others in the host's memory."""

    @pytest.fixture
    def make_storage(self) -> MakeStorage:
        return lambda table, **options: stack_of(table, ON_DEVICE, "hkv", **options)

    @overrides_kit(reason="on the emulator a call of a million rows takes half a minute")
    def test_call_of_a_million_rows(self) -> None:
        pytest.skip("test_device_conformance.py of sparring-hkv has one of 50,000")


class PersistentTests(StorageTests):
    """Stacks over sqlite; `above` are the tiers before it."""

    above: ClassVar[tuple[Any, ...]]
    settings: ClassVar[dict[str, Any]]

    @pytest.fixture
    def make_storage(self, tmp_path: Path) -> MakeStorage:
        numbers = count()

        def make(table: TableConfig, **options: Any) -> Storage:
            folder = tmp_path / str(next(numbers))
            return self.open(table, folder)

        return make

    @pytest.fixture
    def reopen_storage(self) -> Callable[[Storage], Storage]:
        def reopen(closed: Any) -> Storage:
            return self.open(closed.table, closed.tiers[-1].options.folder)

        return reopen

    def open(self, table: TableConfig, folder: Path) -> Storage:
        last = {"backend": "sqlite", "options": {"folder": str(folder)}}
        return stack_of(table, *self.above, last, **self.settings)


@needs_hkv
@needs_sqlite
@pytest.mark.long  # short runs cover it by the stack of three tiers
class TestHkvOverSqlite(PersistentTests):
    above: ClassVar[tuple[Any, ...]] = (SMALL,)
    settings: ClassVar[dict[str, Any]] = {"promote": "second_touch"}


@needs_hkv
@needs_sqlite
class TestHkvOverSqliteInBackground(PersistentTests):
    """As in a container: rows are written on the thread of an event loop."""

    above: ClassVar[tuple[Any, ...]] = (SMALL,)
    settings: ClassVar[dict[str, Any]] = {"promote": "always"}

    @pytest.fixture(autouse=True)
    def event_loop(self) -> Iterator[None]:
        with EventLoop() as self.events:
            yield

    def open(self, table: TableConfig, folder: Path) -> Storage:
        stack = super().open(table, folder)
        stack.use_background(self.events)
        return stack

    @overrides_kit(reason="a million rows in sqlite take long; written within, they prove it")
    def test_call_of_a_million_rows(self) -> None: ...


@needs_hkv
@needs_sqlite
@pytest.mark.slow  # the stack in the background covers its parts
class TestTwoHkvOverSqlite(PersistentTests):
    @overrides_kit(reason="a million rows in sqlite take long; the stack of two proves them")
    def test_call_of_a_million_rows(self) -> None: ...

    above: ClassVar[tuple[Any, ...]] = (SMALLER, SMALL)
    settings: ClassVar[dict[str, Any]] = {"promote": "second_touch"}
