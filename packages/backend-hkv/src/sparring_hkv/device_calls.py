"""Calls of a table on a GPU with arrays on that GPU."""

from __future__ import annotations

from typing import Any

from sparring.contracts import get_capsule
from sparring.errors import InvalidArgumentError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.devices import open_device

__all__ = ["DeviceCalls"]


class DeviceCalls:
    """Finds and upserts arrays on a device, from PyTorch, CuPy or any library with DLPack.

    A call enqueues work on the given stream and returns before the work is done. Arrays must stay alive
    and unchanged until the stream has executed it. Keys must be unique within a call.

    Args:
        storage: a table whose `device` is not ``cpu``. It must outlive this object.

    Raises:
        InvalidArgumentError: the table is on the CPU.
    """

    def __init__(self, storage: HkvStorage) -> None:
        options = storage.options
        if options.device == "cpu":
            raise InvalidArgumentError(
                f"table {storage.table.name!r} is on the CPU: open it with device='cuda', or call "
                "find and upsert with NumPy arrays"
            )
        opened = open_device(options.device_kind, options.device_number)
        self._native: Any = opened.native
        self._handle: Any = opened.handle
        self._capsule = get_capsule(storage)
        self._row_bytes = storage.table.row_bytes

    def find(self, keys: Any, rows: Any, found: Any, stream: int = 0) -> None:
        """Fills `rows` ``(n, columns)`` with the first columns of each row, and `found` ``(n,)`` uint8.

        Args:
            keys: ``(n,)`` int64.
            rows: output of the table's dtype; rows may have any stride. Missing rows are zeros.
            found: output, 1 if the key has a row, else 0.
            stream: a ``cudaStream_t`` as an integer; 0 is the default stream.

        Raises:
            InvalidArgumentError: an array has the wrong device, dtype or shape; or the stream belongs to
                another device, or is being captured into a CUDA graph.
            DeviceError: the GPU rejected the call, and nothing has changed. `DeviceLostError`: the GPU
                has failed, and the table rejects all further calls.
            DeviceMemoryError: the GPU has no free memory; nothing has changed.
        """
        self._native.table_find(self._capsule, self._handle, stream, keys, rows, found)

    def upsert(self, keys: Any, rows: Any, stream: int = 0) -> None:
        """Replaces or inserts whole rows. Rows that a full table evicts are dropped.

        Args:
            keys: ``(n,)`` int64.
            rows: ``(n, width)`` of the table's dtype; rows may have any stride.
            stream: see `find`.

        Raises:
            InvalidArgumentError, DeviceError, DeviceMemoryError: see `find`.
            CapacityError: the table is full and its policy does not evict; nothing has changed.
        """
        self._native.table_upsert(self._capsule, self._handle, stream, keys, rows, self._row_bytes)
