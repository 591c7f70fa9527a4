"""Each deliberate bug is caught by its standard test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import hypothesis
import pytest

from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.storage.memory import MemoryOptions, MemoryStorage, estimate_memory_bytes
from sparring_testing.native.row_handles import RowHandleTests
from sparring_testing.references.samples import MakeStorage
from sparring_testing.storages import machine
from sparring_testing.storages.capabilities import Estimate
from sparring_testing.storages.lifecycle import ReopenStorage
from sparring_testing.storages.storage_tests import StorageTests

from .kit_breaks import BREAKS
from .kit_breaks.row_handles import KeepsHandles

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def short_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under CI, pytest prints every difference, and here each test fails on purpose."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def first_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """One failure is enough, because no one reads the smallest; and no bug is missed by chance."""
    settings = hypothesis.settings(
        machine._SETTINGS, phases=[hypothesis.Phase.generate], max_examples=400
    )
    monkeypatch.setattr(machine, "_SETTINGS", settings)


def make_suite(storage: type[MemoryStorage]) -> type[StorageTests]:
    """The kit on a storage that opens as `memory` does."""

    class TestBroken(StorageTests):
        bounded_options: ClassVar[Any] = {
            policy: {"capacity": 64, "policy": policy}
            for policy in ("none", "lru", "lfu", "custom")
        }

        @pytest.fixture
        def make_storage(self) -> MakeStorage:
            def make(table: TableConfig, **options: Any) -> Storage:
                return storage(table, MemoryOptions(**options))

            return make

        @pytest.fixture
        def estimate(self) -> Estimate:
            def told(opened: Storage, rows: int) -> Mapping[str, int]:
                assert isinstance(opened, MemoryStorage)
                asked = getattr(opened, "estimate", estimate_memory_bytes)
                return asked(opened.table, opened._options, rows)

            return told

        @pytest.fixture
        def reopen_storage(self) -> ReopenStorage:
            def reopen(closed: Storage) -> Storage:
                again = storage(closed.table)
                again._entries.update(getattr(closed, "disk", {}))
                return again

            return reopen

    return TestBroken


# One run of pytest for all breaks of a module, because a run takes much longer than most tests.
AREAS = sorted({storage.__module__.rpartition(".")[2] for storage, _ in BREAKS.values()})
# These take two thirds of the time, and a change of the kit that misses all bugs fails in the others.
SLOW = {"bounded", "lifecycle", "ownership", "refusal", "removal", "scans", "writes"}


@pytest.mark.parametrize(
    "area",
    [pytest.param(each, marks=pytest.mark.slow if each in SLOW else []) for each in AREAS],
)
def test_break_is_caught(pytester: pytest.Pytester, area: str) -> None:
    breaks = {
        name: test
        for name, (storage, test) in BREAKS.items()
        if storage.__module__.rpartition(".")[2] == area
    }
    suites = [f"Test{name} = this.make_suite(this.BREAKS[{name!r}][0])" for name in breaks]
    lines = ["import sys", f"this = sys.modules[{__name__!r}]", *suites]
    pytester.makepyfile(test_broken="\n".join(lines))
    assert __name__ in sys.modules
    # The kit draws other keys each time, and in one of a few hundred runs they do not show a bug.
    result = pytester.inline_run(
        "-p",
        "no:cacheprovider",
        "--sparring-seed=1",
        *(f"test_broken.py::Test{name}::{test}" for name, test in breaks.items()),
    )
    _, _, failed = result.listoutcomes()
    caught = {each.nodeid.split("::")[1].removeprefix("Test") for each in failed}
    missed = {name: test for name, test in breaks.items() if name not in caught}
    assert missed == {}, "these breaks were not caught by the standard test that is there for them"


def test_storage_whose_row_handles_are_right_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_right=f"""
        import sys

        this = sys.modules[{__name__!r}]
        right = sys.modules[{KeepsHandles.__module__!r}].KeepsHandles
        TestRight = this.make_suite(right)
        """
    )
    names = [
        f"test_right.py::TestRight::{name}" for name in vars(RowHandleTests) if "test_" in name
    ]
    passed, skipped, failed = pytester.inline_run("-p", "no:cacheprovider", *names).listoutcomes()
    assert len(passed) >= len(names)
    assert not skipped
    assert not failed


def test_every_standard_test_catches_something() -> None:
    standard = {name for mixin in StorageTests.__bases__ for name in vars(mixin)}
    caught = {test for _, test in BREAKS.values()}
    assert {name for name in standard if name.startswith("test_")} == caught
