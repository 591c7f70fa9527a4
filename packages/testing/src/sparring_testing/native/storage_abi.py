"""Visits and updates of a storage through the C ABI (``storage_abi.h``), with row handles."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts import Columns, Keys, Storage, get_capsule

__all__ = [
    "CAPSULE",
    "ROW_HANDLES",
    "CCall",
    "CColumns",
    "CStat",
    "CStorage",
    "CUpdate",
    "CVisit",
    "Handles",
    "StorageAbi",
    "read_struct",
]

CAPSULE = b"sparring.storage"
ROW_HANDLES = 1 << 5
"""`SPARRING_ROW_HANDLES`"""

_CPU = 1


class CCall(ctypes.Structure):
    """`SparringCall`"""

    _fields_ = (
        ("struct_bytes", c_uint64),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("stream", c_void_p),
        ("executor", c_void_p),
        ("message", ctypes.c_char_p),
        ("release", c_void_p),
        ("owner", c_void_p),
    )


class CColumns(ctypes.Structure):
    """`SparringColumns`"""

    _fields_ = (("begin", c_uint64), ("end", c_uint64))


SHOW = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_int64, c_void_p)
ADMIT = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_void_p, c_void_p)
CHANGE = ctypes.CFUNCTYPE(None, c_void_p, c_int64, c_void_p, c_void_p, c_void_p)


class CVisit(ctypes.Structure):
    """`SparringVisit`"""

    _fields_ = (
        ("call", CCall),
        ("count", c_int64),
        ("keys", c_void_p),
        ("columns", CColumns),
        ("show", SHOW),
        ("context", c_void_p),
        ("handles", c_void_p),
        ("generation", c_uint64),
    )


class CUpdate(ctypes.Structure):
    """`SparringUpdate`"""

    _fields_ = (
        ("call", CCall),
        ("count", c_int64),
        ("keys", c_void_p),
        ("scores", c_void_p),
        ("admit", ADMIT),
        ("change", CHANGE),
        ("context", c_void_p),
        ("receive", c_void_p),
        ("receive_context", c_void_p),
        ("inserted", c_int64),
        ("handles", c_void_p),
        ("generation", c_uint64),
    )


class CStat(ctypes.Structure):
    """`SparringStat`"""

    _fields_ = (
        ("call", CCall),
        ("capabilities", c_uint64),
        ("row_bytes", c_uint64),
        ("size", c_int64),
        ("capacity", c_int64),
        ("memory_bytes", c_uint64),
    )


def _callback(arguments: type[ctypes.Structure]) -> Any:
    return ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(arguments))


class CStorage(ctypes.Structure):
    """`SparringStorage`"""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("release", c_void_p),
        ("struct_bytes", c_uint64),
        ("distribution", ctypes.c_char_p),
        ("self", c_void_p),
        *((name, c_void_p) for name in ("find", "upsert", "erase", "scan")),
        ("stat", _callback(CStat)),
        *((name, c_void_p) for name in ("flush", "clear", "touch", "evict", "set_option")),
        ("visit", _callback(CVisit)),
        ("update", _callback(CUpdate)),
    )


def read_struct(capsule: object) -> CStorage:
    """Returns the struct in a capsule. The capsule must outlive it."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return CStorage.from_address(get(capsule, CAPSULE))


@dataclass(frozen=True, slots=True)
class Handles:
    """Row handles that a visit returned."""

    keys: Keys
    pointers: npt.NDArray[np.uint64]
    """``(n,)``, 0 if a key has no row."""
    generation: int


class StorageAbi:
    """The C struct of a storage on the CPU. Rows are bytes."""

    def __init__(self, storage: Storage) -> None:
        self._capsule = get_capsule(storage)
        self._struct = read_struct(self._capsule)
        stat = self._call(self._struct.stat, CStat())
        self.row_bytes = int(stat.row_bytes)
        self.keeps_handles = bool(stat.capabilities & ROW_HANDLES)

    def visit(
        self, keys: Keys, columns: Columns | None = None, handles: Handles | None = None
    ) -> tuple[list[bytes | None], Handles]:
        """Returns the columns of the row of each key, as bytes, and the row handles.

        The handles are valid only if the columns begin at 0.

        Args:
            keys: ``(n,)`` keys.
            columns: range of bytes; None for whole rows.
            handles: row handles of these keys.
        """
        keys, span = np.ascontiguousarray(keys), columns or Columns(0, self.row_bytes)
        rows: list[bytes | None] = []
        pointers = np.zeros(len(keys), np.uint64)

        def show(_context: Any, begin: int, count: int, shown: int) -> int:
            assert begin == len(rows), "the ranges passed to show must be consecutive"
            pointers[begin : begin + count] = _array(shown, count, c_uint64)
            for pointer in pointers[begin : begin + count].tolist():
                rows.append(ctypes.string_at(pointer, span.end - span.begin) if pointer else None)
            return 0

        visit = CVisit(
            count=len(keys),
            keys=keys.ctypes.data,
            columns=CColumns(span.begin, span.end),
            show=SHOW(show),
        )
        _pass_array(visit, handles)
        self._call(self._struct.visit, visit)
        return rows, Handles(keys, pointers, int(visit.generation))

    def update(
        self, keys: Keys, rows: npt.NDArray[np.uint8], handles: Handles | None = None
    ) -> list[bool]:
        """Writes the whole row of each key and returns which keys were new.

        Args:
            keys: ``(n,)`` keys.
            rows: ``(n, row_bytes)``.
            handles: row handles of these keys.
        """
        keys, rows = np.ascontiguousarray(keys), np.ascontiguousarray(rows)
        times, were_new = [0] * len(keys), [False] * len(keys)

        def change(_context: Any, count: int, places: int, to: int, is_new: int) -> None:
            changed = zip(
                _array(places, count, c_int64).tolist(),
                _array(to, count, c_uint64).tolist(),
                _array(is_new, count, c_uint8).tolist(),
                strict=True,
            )
            for place, pointer, flag in changed:
                times[place] += 1
                were_new[place] = bool(flag)
                ctypes.memmove(pointer, rows[place].ctypes.data, self.row_bytes)

        update = CUpdate(count=len(keys), keys=keys.ctypes.data, change=CHANGE(change))
        _pass_array(update, handles)
        self._call(self._struct.update, update)
        assert times == [1] * len(keys), "each key must be changed exactly once"
        assert update.inserted == sum(were_new)
        return were_new

    def _call(self, callback: Callable[..., int], arguments: Any) -> Any:
        arguments.call.struct_bytes = ctypes.sizeof(arguments)
        arguments.call.device_type = _CPU
        status = callback(self._struct.self, ctypes.byref(arguments))
        assert status == 0, f"status {status}: {arguments.call.message!r}"
        return arguments


def _pass_array(arguments: Any, handles: Handles | None) -> None:
    if handles is not None:
        arguments.handles = handles.pointers.ctypes.data
        arguments.generation = handles.generation


def _array(address: int, count: int, of: Any) -> npt.NDArray[Any]:
    return np.ctypeslib.as_array((of * count).from_address(address))
