"""Plugin of sparring-packed. Importing it does not load the native library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts import (
    API_VERSION,
    CommandDescriptor,
    StorageDescriptor,
    hookimpl,
)
from sparring_packed.options import PackedOptions

if TYPE_CHECKING:
    import typer

    from sparring.contracts import Storage, TableConfig


@hookimpl
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="inspect-served",
            api_version=API_VERSION,
            summary="Show and verify a serving snapshot.",
            register=_add_inspect_served,
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


def _add_inspect_served(app: typer.Typer) -> None:
    from sparring_packed.cli import add_inspect_served

    add_inspect_served(app)


def _open(table: TableConfig, options: PackedOptions) -> Storage:
    from sparring_packed.storage import PackedStorage

    return PackedStorage(table, options)


def _found(table: TableConfig, options: PackedOptions) -> TableConfig | None:
    from sparring_packed.storage import found_table

    return found_table(table, options)


def _quantized(snapshot_url: str, folder: str, dtypes: Mapping[str, str]) -> Mapping[str, Any]:
    from sparring_packed.writer import WriteOptions, write

    url = f"{folder}/quantized"
    write(snapshot_url, url, quantize=dtypes, options=WriteOptions(filter_rate=None))
    return {"path": url, "verify": "open"}
