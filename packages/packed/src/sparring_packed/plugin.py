"""Plugin of sparring-packed. Importing it loads no native library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import StorageDescriptor, hookimpl
from sparring_packed.options import PackedOptions

if TYPE_CHECKING:
    from sparring.contracts import Storage, TableConfig


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="packed",
            api_version=(1, 0),
            summary="A serving snapshot, mapped: read only, shared by processes, any dtype.",
            options=PackedOptions,
            factory=_open,
            found=_found,
        )
    ]


def _open(table: TableConfig, options: PackedOptions) -> Storage:
    from sparring_packed.storage import PackedStorage

    return PackedStorage(table, options)


def _found(table: TableConfig, options: PackedOptions) -> TableConfig | None:
    from sparring_packed.storage import found_table

    return found_table(table, options)
