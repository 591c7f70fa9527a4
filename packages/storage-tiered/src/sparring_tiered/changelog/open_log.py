"""Finds the change notes of a table: in its backend, or in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparring.contracts import ChangeLog, validate_options
from sparring.errors import InvalidArgumentError

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["open_change_log"]


def open_change_log(
    table: str, url: str | None, backend: str, options: Mapping[str, Any], manager: PluginManager
) -> ChangeLog:
    """Opens the notes of a table.

    Args:
        table: its name.
        url: of the folder that they are in; None: they are with the rows.
        backend: of the storage that has the rows; of a stack, its last tier counts.
        options: of that backend.
        manager: where backends are looked up.

    Raises:
        InvalidArgumentError: there is no `url`, and the backend keeps no notes.
        PluginError, StorageIOError: the place cannot be opened.
    """
    if url is not None:
        from sparring_tiered.changelog.folder_log import FolderLog

        return FolderLog(url, table)
    descriptor = manager.storage(backend)
    checked = validate_options("storage", descriptor, options)
    if descriptor.inner is not None:
        last = descriptor.inner(checked)[-1]
        return open_change_log(table, None, last.backend, last.options, manager)
    if descriptor.change_log is None:
        raise InvalidArgumentError(
            f"table {table!r}: storage {backend!r} keeps no change notes with its rows; name a folder "
            "for them that trainer and readers reach",
            table=table,
        )
    return descriptor.change_log(table, checked)
