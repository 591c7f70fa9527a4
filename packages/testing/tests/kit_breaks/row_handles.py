"""Bugs of row handles, in a storage that keeps them."""

from __future__ import annotations

import ctypes
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.tables.table import TableConfig
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring.storage.native import export_storage
from sparring_testing.native.storage_abi import (
    CAPSULE,
    ROW_HANDLES,
    CStorage,
    CUpdate,
    CVisit,
    read_struct,
)

from .registry import caught_by

_GENERATIONS = count(1)
_MOST_ROWS = 4096


class KeepsHandles(MemoryStorage):
    """Rows are in the slots of an arena, and slots are reused. Not broken itself."""

    def __init__(self, table: TableConfig, options: MemoryOptions | None = None) -> None:
        super().__init__(table, options)
        self._arena = np.zeros((_MOST_ROWS, table.row_bytes), np.uint8)
        self._slots: dict[int, int] = {}
        self._free = list(range(_MOST_ROWS))
        self._generation = self._new_generation()
        self._exported: Any = None

    def __sparring_storage__(self) -> object:
        self._check_open()
        if self._exported is None:
            inner = export_storage(self)
            struct = CStorage.from_buffer_copy(read_struct(inner))
            fields = dict(CStorage._fields_)
            # A copy: the attribute is a view of the struct, which changes below.
            report = fields["stat"](ctypes.cast(struct.stat, ctypes.c_void_p).value)

            def stat(owner: Any, call: Any) -> int:
                status: int = report(owner, call)
                call.contents.capabilities |= ROW_HANDLES
                return status

            struct.stat = fields["stat"](stat)
            struct.visit = fields["visit"](lambda _, call: self._visit(call.contents))
            struct.update = fields["update"](lambda _, call: self._update(call.contents))
            new = ctypes.pythonapi.PyCapsule_New
            new.restype, new.argtypes = (
                ctypes.py_object,
                (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
            )
            self._exported = new(ctypes.addressof(struct), CAPSULE, None), struct, inner, report
        return self._exported[0]

    def _new_generation(self) -> int:
        return next(_GENERATIONS)

    def _is_current(self, generation: int) -> bool:
        return generation == self._generation

    def _begin(self, column: int) -> int:
        """The byte from which on a visit by handles shows rows."""
        return column

    def _row_of(self, key: int, handle: int | None) -> int:
        """The address of a row; 0: there is none. `handle`: None where none was given."""
        return handle or (self._address(key) if key in self._slots else 0)

    def _address(self, key: int) -> int:
        return int(self._arena.ctypes.data) + self._slots[key] * self.table.row_bytes

    def _take_slots(self) -> None:
        """Shows the rows that are there now."""
        gone = self._slots.keys() - self._entries.keys()
        for key in sorted(gone):
            self._free.append(self._slots.pop(key))
        if gone:
            self._generation = self._new_generation()
        for key, entry in self._entries.items():
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = self._free.pop()
            self._arena[slot] = np.frombuffer(entry.row, np.uint8)

    def _visit(self, call: CVisit) -> int:
        self._take_slots()
        keys, handles = _array(call.keys, call.count, ctypes.c_int64), None
        first, generation = call.columns.begin, call.generation
        if call.handles and self._is_current(generation):
            first = self._begin(first)
            handles = _array(call.handles, call.count, ctypes.c_uint64)
            rows = handles + np.uint64(first) * (handles != 0)
        else:
            found = [self._row_of(key, None) for key in keys.tolist()]
            rows = np.array([row and row + first for row in found], np.uint64)
        call.generation = self._generation
        shown: int = call.show(call.context, 0, call.count, rows.ctypes.data)
        return shown

    def _update(self, call: CUpdate) -> int:
        self._take_slots()
        keys = _array(call.keys, call.count, ctypes.c_int64)
        handles: list[int | None] = [None] * call.count
        if call.handles and self._is_current(call.generation):
            handles = _array(call.handles, call.count, ctypes.c_uint64).tolist()
        addresses = [self._row_of(*each) for each in zip(keys.tolist(), handles, strict=True)]
        made = np.zeros((call.count, self.table.row_bytes), np.uint8)
        is_new = np.array([not each for each in addresses], np.uint8)
        rows = np.array(
            [address or int(made[i].ctypes.data) for i, address in enumerate(addresses)],
            np.uint64,
        )
        places = np.arange(call.count)
        call.change(
            call.context, call.count, places.ctypes.data, rows.ctypes.data, is_new.ctypes.data
        )
        call.inserted = int(is_new.sum())
        # An address identifies the changed row, even if a bug uses it for another key.
        key_at = {self._address(key): key for key in self._slots}
        changed = {
            key_at.get(address, key): ctypes.string_at(row, self.table.row_bytes)
            for key, address, row in zip(keys.tolist(), addresses, rows.tolist(), strict=True)
        }
        data = np.frombuffer(b"".join(changed.values()), self.table.numpy_dtype)
        self._upsert_impl(np.array(list(changed), np.int64), data.reshape(len(changed), -1), None)
        return 0


def _array(address: int, size: int, of: Any) -> npt.NDArray[Any]:
    return np.ctypeslib.as_array((of * size).from_address(address)) if size else np.empty(0, of)


@caught_by("test_old_handles_are_looked_up_again")
class HandlesOutliveTheirRows(KeepsHandles):
    def _is_current(self, generation: int) -> bool:
        return generation != 0


@caught_by("test_old_handles_of_a_bounded_storage_are_looked_up_again")
class HandlesOutliveTheirEviction(HandlesOutliveTheirRows):
    pass


@caught_by("test_handles_of_another_storage_are_ignored")
class GenerationsOfEachStorageAreItsOwn(KeepsHandles):
    def _new_generation(self) -> int:
        return getattr(self, "_generation", 0) + 1


@caught_by("test_rows_by_handle_equal_the_rows_of_find")
class HandlesForgetColumns(KeepsHandles):
    def _begin(self, column: int) -> int:
        return 0


@caught_by("test_an_update_looks_up_keys_without_a_handle")
class NoHandleIsNoRow(KeepsHandles):
    def _row_of(self, key: int, handle: int | None) -> int:
        return super()._row_of(key, handle) if handle is None else handle
