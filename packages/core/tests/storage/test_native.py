"""The native handle: frozen 1.0, wrapping in both directions, rejection of another version."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import sparring
from sparring import _native
from sparring.contracts.tables.table import TableConfig
from sparring.errors import (
    CapacityError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    InternalError,
    InvalidArgumentError,
    UnsupportedError,
    VersionError,
)
from sparring.storage.native import NativeStorage, get_capsule
from sparring.storage.open import open_storage
from sparring_testing.processes.plugin_site import Site

FROZEN = Path(__file__).parent / "abi" / "v1"
PRESENT = Path(__file__).parents[2] / "include" / "sparring" / "storage_abi.h"

ACME = """
    from sparring.contracts import StorageDescriptor, hookimpl
    from sparring.storage.native import NativeStorage

    def make(table, options):
        import tests_capsule
        return NativeStorage(tests_capsule.capsule(), table)

    @hookimpl
    def sparring_register_storage():
        return [StorageDescriptor(name="acme", api_version=(1, 0), factory=make)]
"""

needs_compiler = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="compiles a backend in C, and found no gcc"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A backend built against the frozen header."""
    library = tmp_path_factory.mktemp("abi") / "libtiny.so"
    subprocess.run(
        ["gcc", "-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library,
         FROZEN / "tiny_storage.c"],
        check=True,
    )  # fmt: skip
    loaded = ctypes.CDLL(str(library))
    loaded.tiny_create.restype = ctypes.c_void_p
    loaded.tiny_create.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p]
    return loaded


class Made:
    """A capsule over a tiny storage, with the count of its releases."""

    _destructor_type = ctypes.PYFUNCTYPE(None, ctypes.py_object)

    def __init__(self, library: ctypes.CDLL, row_bytes: int, major: int = 1) -> None:
        self.releases = ctypes.c_int(0)
        self.pointer = library.tiny_create(row_bytes, major, ctypes.addressof(self.releases))

    def capsule(self) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(self.pointer, b"sparring.storage", None)


@needs_compiler
def test_a_backend_built_against_the_frozen_header_works(tiny: ctypes.CDLL) -> None:
    table = TableConfig("t", 3)
    storage = NativeStorage(Made(tiny, table.row_bytes).capsule(), table)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    storage.upsert([-1, 7], rows)
    found = storage.find([7, 8, -1])
    np.testing.assert_array_equal(found.rows, [rows[1], [0, 0, 0], rows[0]])
    assert found.found.tolist() == [True, False, True]
    assert storage.find([7], sparring.Columns(1, 2)).rows.tolist() == [[4.0]]
    assert [chunk.keys.tolist() for chunk in storage.scan(1)] == [[-1], [7]]
    assert (storage.size, storage.capacity, storage.distribution) == (2, 64, "tiny-storage 1.0")
    assert storage.erase([7, 9]) == 1
    storage.clear()
    assert storage.size == 0


@needs_compiler
def test_an_error_of_a_native_backend_has_its_type_and_message(tiny: ctypes.CDLL) -> None:
    table = TableConfig("t", 1)
    storage = NativeStorage(Made(tiny, table.row_bytes).capsule(), table)
    with pytest.raises(CapacityError, match="tiny storage holds 64 rows"):
        storage.upsert(np.arange(65), np.zeros((65, 1), np.float32))
    assert storage.size == 0


@needs_compiler
def test_missing_optional_callbacks_are_rejected_by_name(tiny: ctypes.CDLL) -> None:
    table = TableConfig("t", 1)
    storage = NativeStorage(Made(tiny, table.row_bytes).capsule(), table)
    assert not storage.capabilities.touch
    assert not storage.capabilities.evict
    with pytest.raises(UnsupportedError, match="touch"):
        storage.touch([1])
    with pytest.raises(UnsupportedError, match="evict"):
        storage.evict(1)
    with pytest.raises(UnsupportedError, match="options"):
        storage.set_option("epoch", 3)


@needs_compiler
@pytest.mark.parametrize("major", [0, 2, 99])
def test_another_major_version_is_rejected_naming_both(tiny: ctypes.CDLL, major: int) -> None:
    table = TableConfig("t", 1)
    made = Made(tiny, table.row_bytes, major)
    with pytest.raises(VersionError) as caught:
        NativeStorage(made.capsule(), table)
    assert f"{major}.0" in str(caught.value)
    assert ".".join(map(str, _native.STORAGE_ABI)) in str(caught.value)


@needs_compiler
@pytest.mark.parametrize(
    ("major", "remedy"),
    [
        (0, "upgrade the backend, or install an older version of sparring"),
        (2, "upgrade sparring, or install an older version of the backend"),
    ],
)
def test_a_rejected_version_names_both_distributions_and_which_to_upgrade(
    tiny: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, major: int, remedy: str
) -> None:
    table = TableConfig("t", 1)
    made = Made(tiny, table.row_bytes, major)
    site = Site(tmp_path / "site", monkeypatch)
    site.install("acme-storage", ACME, version="3.7")
    opener = ModuleType("tests_capsule")
    monkeypatch.setitem(sys.modules, "tests_capsule", opener)
    opener.capsule = made.capsule  # type: ignore[attr-defined]
    with pytest.raises(VersionError) as caught:
        open_storage("acme", table)
    ours = ".".join(map(str, _native.STORAGE_ABI))
    for part in ("acme-storage 3.7", f"ABI {major}.0", f"sparring {version('sparring')}", ours):
        assert part in str(caught.value)
    assert str(caught.value).endswith(remedy)
    assert caught.value.distribution == "acme-storage 3.7"


@needs_compiler
def test_a_rejected_version_names_the_distribution_of_the_class(
    tiny: ctypes.CDLL,
) -> None:
    table = TableConfig("t", 1)

    class OwnStorage(NativeStorage):
        pass

    # A module of pytest represents a backend of another distribution.
    OwnStorage.__module__ = "_pytest.own"
    with pytest.raises(VersionError, match=rf"pytest {version('pytest')} was built for.*ABI 2\.0"):
        OwnStorage(Made(tiny, table.row_bytes, 2).capsule(), table)


@needs_compiler
def test_rows_of_another_size_are_rejected(tiny: ctypes.CDLL) -> None:
    with pytest.raises(InvalidArgumentError, match=r"12 bytes.*16"):
        NativeStorage(Made(tiny, 12).capsule(), TableConfig("t", 4))


def test_a_capsule_of_another_name_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"sparring\.storage"):
        NativeStorage(__import__("datetime").datetime_CAPI, TableConfig("t", 4))


@needs_compiler
def test_the_current_header_has_the_frozen_layout_of_version_1_0(tmp_path: Path) -> None:
    layouts = []
    for name, header in (("frozen", FROZEN / "storage_abi.h"), ("present", PRESENT)):
        program = tmp_path / name
        subprocess.run(
            ["gcc", "-std=c99", f'-DHEADER="{header}"', "-o", program, FROZEN / "layout.c"],
            check=True,
        )
        layouts.append(subprocess.run([program], check=True, capture_output=True).stdout)
    assert layouts[0] == layouts[1]
    assert b"SparringStorage.version 0+8" in layouts[0]
    assert b"SparringStorage.release 8+8" in layouts[0]


def exported(**options: object) -> tuple[sparring.Storage, NativeStorage]:
    """A Python storage, and itself seen through the C ABI."""
    table = TableConfig("t", 2)
    inner = open_storage("memory", table, **options)
    return inner, NativeStorage(get_capsule(inner), table)


def test_a_python_storage_crosses_the_native_interface_in_both_directions() -> None:
    inner, outer = exported()
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    keys = [0, -1, -(2**63), 2**63 - 1]
    outer.upsert(keys, rows)
    np.testing.assert_array_equal(inner.find(keys).rows, rows)
    np.testing.assert_array_equal(outer.find(keys, sparring.Columns(1, 2)).rows, rows[:, 1:])
    assert sorted(k for chunk in outer.scan(3) for k in chunk.keys.tolist()) == sorted(keys)
    assert outer.erase([0, 5]) == 1
    assert outer.size == inner.size == 3
    assert outer.distribution.startswith("sparring ")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"capacity": 9},
        {"policy": "lru"},
        {"capacity": 9, "policy": "lru"},
        {"policy": "custom"},
    ],
    ids=str,
)
def test_a_wrapped_python_storage_declares_its_properties(options: dict[str, object]) -> None:
    inner, outer = exported(**options)
    # The interface does not describe the scope, so the weaker guarantee is declared.
    expected = replace(inner.capabilities, eviction_scope="bucket")
    assert outer.capabilities == expected
    assert not outer.capabilities.native, "its callbacks call Python"
    again = NativeStorage(get_capsule(outer), outer.table)
    assert not again.capabilities.native


@needs_compiler
def test_a_storage_in_c_declares_that_it_never_calls_python(tiny: ctypes.CDLL) -> None:
    table = TableConfig("t", 1)
    assert NativeStorage(Made(tiny, table.row_bytes).capsule(), table).capabilities.native


def test_rows_evicted_by_a_python_storage_cross_the_native_interface() -> None:
    inner, outer = exported(capacity=2, policy="lru")
    outer.upsert([1], np.full((1, 2), 1, np.float32))
    outer.upsert([2], np.full((1, 2), 2, np.float32))
    evicted = outer.upsert([3], np.full((1, 2), 3, np.float32))
    assert evicted.keys.tolist() == [1]
    assert evicted.rows.tolist() == [[1.0, 1.0]]
    assert outer.evict(1).keys.tolist() == [2]
    assert inner.size == 1


def test_errors_keep_their_class_across_the_native_interface() -> None:
    inner, outer = exported()
    outer.validate = False
    with pytest.raises(InvalidArgumentError, match="more than once"):
        outer.upsert([1, 1], np.zeros((2, 2), np.float32))
    inner.close()
    with pytest.raises(ClosedError, match="closed"):
        outer.find([1])


@pytest.mark.parametrize("kind", [DeviceError, DeviceLostError, DeviceMemoryError])
def test_errors_of_a_device_keep_their_class_and_numbers(kind: type[DeviceError]) -> None:
    inner, outer = exported()

    def failing(*arguments: object) -> None:
        raise kind("find: 70 bytes of device memory were asked for, 5 are free; free some")

    inner._find_impl = failing  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="asked for, 5 are free") as caught:
        outer.find([1])
    assert type(caught.value) is kind
    if kind is DeviceMemoryError:
        assert (caught.value.asked_bytes, caught.value.free_bytes) == (70, 5)


def test_a_bug_in_a_python_storage_is_reported_as_such() -> None:
    inner, outer = exported()

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("the author slipped")

    inner._find_impl = broken  # type: ignore[method-assign]
    with pytest.raises(InternalError, match="ZeroDivisionError: the author slipped"):
        outer.find([1])


def test_an_exported_storage_lives_as_long_as_its_capsule() -> None:
    table = TableConfig("t", 2)
    outer = NativeStorage(get_capsule(open_storage("memory", table)), table)
    gc.collect()
    outer.upsert([5], np.ones((1, 2), np.float32))
    assert outer.find([5]).found.all()
    outer.close()
    with pytest.raises(ClosedError):
        outer.find([5])


def test_an_unknown_scan_cursor_is_rejected() -> None:
    _, outer = exported()
    with pytest.raises(InvalidArgumentError, match="start again"):
        outer._handle.scan((999, 3), 8, 0, 8)
