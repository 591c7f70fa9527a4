"""What sparring-hkv offers to sparring. Importing this loads no native library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.descriptors import StorageDescriptor
from sparring.hookspecs import hookimpl
from sparring_hkv.options import HkvOptions

if TYPE_CHECKING:
    from sparring.storage import Storage
    from sparring.table import TableConfig


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="hkv",
            api_version=(1, 0),
            summary="A hash table in memory: grows, or evicts by a policy.",
            options=HkvOptions,
            factory=_open,
        )
    ]


def _open(table: TableConfig, options: HkvOptions) -> Storage:
    from sparring_hkv.backend import HkvStorage

    return HkvStorage(table, options)
