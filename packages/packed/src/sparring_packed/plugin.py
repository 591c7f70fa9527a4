"""Plugin of sparring-packed. Importing it does not load the native library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts import (
    API_VERSION,
    StorageDescriptor,
    hookimpl,
)
from sparring_packed.options import PackedOptions

if TYPE_CHECKING:
    from sparring.contracts import Storage, TableConfig
    from sparring_cli import InspectorDescriptor


@hookimpl(optionalhook=True)
def sparring_register_inspectors() -> Sequence[InspectorDescriptor]:
    from sparring_cli import InspectorDescriptor

    return [
        InspectorDescriptor(
            name="serving_snapshot",
            api_version=API_VERSION,
            summary="Serving snapshots: tables, rows, bytes and chain.",
            recognizes=_is_serving_snapshot,
            inspect=_inspect,
        )
    ]


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="packed",
            api_version=(1, 0),
            summary="A serving snapshot, mapped: read-only, shared by processes, any dtype.",
            options=PackedOptions,
            factory=_open,
            found=_found,
            quantized=_quantized,
        )
    ]


def _is_serving_snapshot(url: str) -> bool:
    from sparring_packed.inspection import is_serving_snapshot

    return is_serving_snapshot(url)


def _inspect(url: str, verify: bool, as_json: bool) -> None:
    from sparring_packed.inspection import inspect_serving_snapshot

    inspect_serving_snapshot(url, verify, as_json)


def _open(table: TableConfig, options: PackedOptions) -> Storage:
    from sparring_packed.storage import PackedStorage

    return PackedStorage(table, options)


def _found(table: TableConfig, options: PackedOptions) -> TableConfig | None:
    from sparring_packed.storage import found_table

    return found_table(table, options)


def _quantized(snapshot_url: str, folder: str, dtypes: Mapping[str, str]) -> Mapping[str, Any]:
    from sparring_packed.version_files import WriteOptions
    from sparring_packed.writer import write

    url = f"{folder}/quantized"
    write(snapshot_url, url, quantize=dtypes, options=WriteOptions(filter_rate=None))
    return {"path": url, "verify": "open"}
