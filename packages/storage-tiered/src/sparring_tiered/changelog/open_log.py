"""Opens the change notes of a table, in its backend or in a folder."""

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
    """Opens the change notes of a table.

    Args:
        table: Name of the table.
        url: Folder of the notes; None if the backend of the rows stores them.
        backend: Backend of the rows. For a stack, the notes are in the backend of its last tier.
        options: Options of the backend.
        manager: Finds backends by name.

    Raises:
        InvalidArgumentError: `url` is None, and the backend stores no notes.
        PluginError, StorageIOError: The location of the notes cannot be opened.
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
            f"table {table!r}: storage {backend!r} cannot store change notes; set a folder for them that "
            "the trainer and the readers can access",
            table=table,
        )
    return descriptor.change_log(table, checked)
