"""Calls of a table on a GPU, with arrays on that GPU."""

from __future__ import annotations

from typing import Any

from sparring.contracts import get_capsule
from sparring.errors import InvalidArgumentError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.devices import open_device

__all__ = ["DeviceCalls"]


class DeviceCalls:
    """Finds and upserts arrays of a device: PyTorch's, CuPy's, whatever has DLPack.

    Work is put on the stream named, and has not happened when a call returns; arrays must live, and
    stay as they are, until the stream has passed. Keys are unique within one call.

    Args:
        storage: a table with a `device` other than ``cpu``; it must live as long as this.

    Raises:
        InvalidArgumentError: the table is on the CPU.
    """

    def __init__(self, storage: HkvStorage) -> None:
        options = storage.options
        if options.device == "cpu":
            raise InvalidArgumentError(
                f"table {storage.table.name!r} is on the CPU: open it with device='cuda', or call "
                "find and upsert with NumPy's arrays"
            )
        opened = open_device(options.device_kind, options.device_number)
        self._native: Any = opened.native
        self._handle: Any = opened.handle
        self._capsule = get_capsule(storage)
        self._row_bytes = storage.table.row_bytes

    def find(self, keys: Any, rows: Any, found: Any, stream: int = 0) -> None:
        """Fills `rows` ``(n, columns)``, the first columns of each row, and `found` ``(n,)`` uint8.

        Args:
            keys: ``(n,)`` int64.
            rows: of the table's dtype; rows may be apart.
            found: 1 where a key has a row, else 0, and its row zeros.
            stream: a ``cudaStream_t`` as a number; 0 is the default stream.

        Raises:
            InvalidArgumentError: an array of another device, dtype or shape; a stream of another
                device, or one that is captured into a CUDA graph.
            DeviceError: the GPU refused the call, and nothing has changed; `DeviceLostError`: it
                has failed, and the table refuses everything from now on.
            DeviceMemoryError: the GPU has no memory left; nothing has changed.
        """
        self._native.table_find(self._capsule, self._handle, stream, keys, rows, found)

    def upsert(self, keys: Any, rows: Any, stream: int = 0) -> None:
        """Replaces or inserts whole rows. What has to leave a full table is dropped.

        Args:
            keys: ``(n,)`` int64.
            rows: ``(n, width)`` of the table's dtype; rows may be apart.
            stream: as for `find`.

        Raises:
            InvalidArgumentError, DeviceError, DeviceMemoryError: as `find`.
            CapacityError: full, and the policy may not evict; nothing has changed.
        """
        self._native.table_upsert(self._capsule, self._handle, stream, keys, rows, self._row_bytes)
