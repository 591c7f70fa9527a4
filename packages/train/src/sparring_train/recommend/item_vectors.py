"""The vectors of all items, computed once and mapped by all processes that compute parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import xxhash

from sparring.errors import InvalidArgumentError
from sparring_train.recommend.part_files import PLAN, PartFolder

__all__ = ["ItemVectors", "open_item_vectors"]


@dataclass(frozen=True, slots=True)
class ItemVectors:
    """Items in order of their keys."""

    keys: npt.NDArray[np.int64]
    """``(n,)``"""
    names: pyarrow.Array
    """``(n,)``, the values in the output."""
    rows: npt.NDArray[np.float32]
    """``(n, dim)``"""

    def to_bytes(self) -> memoryview:
        """Returns an Arrow file."""
        vectors = pyarrow.FixedSizeListArray.from_arrays(self.rows.reshape(-1), self.rows.shape[1])
        table = pyarrow.table({"key": self.keys, "name": self.names, "vector": vectors})
        # A buffer that grows while it is written would be copied, and be too large.
        size = pyarrow.MockOutputStream()
        _write(table, size)
        buffer = pyarrow.allocate_buffer(size.size())
        _write(table, pyarrow.FixedSizeBufferWriter(buffer))
        return memoryview(buffer)

    @staticmethod
    def of(source: Any) -> ItemVectors:
        """Opens an Arrow file.

        Args:
            source: memory map or buffer.
        """
        table = pyarrow.ipc.open_file(source).read_all().combine_chunks()
        keys, names, vectors = (column.chunk(0) for column in table.columns)
        rows = vectors.flatten().to_numpy().reshape(len(keys), -1)
        return ItemVectors(keys.to_numpy(), names, rows)


def _write(table: pyarrow.Table, sink: Any) -> None:
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def open_item_vectors(
    output: PartFolder, plan: dict[str, Any], compute: Callable[[], ItemVectors]
) -> ItemVectors:
    """Maps the vectors of an output, and computes and stores them if they do not exist.

    Args:
        output: folder of the result.
        plan: plan of the result, in which ``items`` is set to the hash of the vectors.
        compute: computes the vectors.

    Raises:
        InvalidArgumentError: the plan or the vectors differ from those of the existing parts.
        StorageIOError: the file system failed.
    """
    stored = output.read_plan()
    digest = None
    if stored is not None:
        # Rejects other options before anything is computed.
        output.begin({**plan, "items": stored.get("items")})
        digest = str(stored["items"])
    if digest is None or not output.has_intact(_name(digest), digest):
        data = compute().to_bytes()
        computed = xxhash.xxh3_128_hexdigest(data)
        if digest is None:
            output.write(_name(computed), data)
            # Only the first of several processes stores its plan; all use the vectors that it names.
            digest = str(output.store_plan({**plan, "items": computed}).get("items"))
        elif digest == computed:
            output.write(_name(computed), data)
        else:
            raise InvalidArgumentError(
                f"{output.url}/{PLAN}: the vectors of the items have the hash {digest}, but {computed} "
                "here: the output is for other items, or a machine with other instructions began it; "
                "repeat the command on such a machine, choose another --output, or delete the folder"
            )
        del data
    plan["items"] = digest
    path = output.local_path(_name(digest))
    if path is not None:
        return ItemVectors.of(pyarrow.memory_map(path))
    return ItemVectors.of(pyarrow.py_buffer(output.read(_name(digest))))


def _name(digest: str) -> str:
    return f"_items-{digest}.arrow"
