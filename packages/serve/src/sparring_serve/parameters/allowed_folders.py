"""Restricts the URLs that a service saves to and loads from."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from sparring_serve.status import Status, StatusError

__all__ = ["resolved_url", "snapshot_url"]

_NAME = re.compile(r"\w[\w .,=+@-]{0,254}\Z")
_MAX_SHOWN = 200


def snapshot_url(url: str, folders: Sequence[str]) -> str:
    """Returns the URL of a snapshot in one of the folders of a service.

    Only the text is compared, and nothing is opened: other file systems, chained file systems, ``..``
    and escapes cannot leave the folders.

    Args:
        url: Name of a snapshot in the first folder, or URL of a snapshot in any of the folders.
        folders: `parameters.folders`.

    Raises:
        StatusError: It is neither.
    """
    folder, has_folder, name = url.rstrip("/").rpartition("/")
    if not _NAME.match(name):
        raise StatusError(
            Status.INVALID_ARGUMENT,
            f"{url[:_MAX_SHOWN]!r} is not a valid snapshot name; use at most 255 letters, digits, and "
            "after the first character any of ' .,=+@_-', or a URL that ends with such a name",
            reason="url",
        )
    if not has_folder:
        return f"{folders[0].rstrip('/')}/{name}"
    asked = _as_text(folder)
    for known in folders:
        if asked in (_as_text(known), resolved_url(known)):
            return f"{known.rstrip('/')}/{name}"
    raise StatusError(
        Status.INVALID_ARGUMENT,
        f"{url[:_MAX_SHOWN]!r} is outside the folders that this service saves to and loads from "
        f"({', '.join(folders)}); use a snapshot there, or add its folder to parameters.folders",
        reason="url",
    )


def resolved_url(url: str) -> str:
    """Returns the URL of a snapshot, or its folder, as lists of snapshots name it: the path of a local
    folder is absolute, and symbolic links are resolved. An empty URL stays empty."""
    return os.path.realpath(url.removeprefix("file://")) if url and _is_local(url) else url


def _is_local(folder: str) -> bool:
    return "://" not in folder.removeprefix("file://") and "::" not in folder


def _as_text(folder: str) -> str:
    """Returns a folder in a form for comparisons: local paths are absolute, other URLs are unchanged."""
    if not _is_local(folder):
        return folder.rstrip("/")
    # Path.resolve would access the file system.
    return os.path.abspath(folder.removeprefix("file://"))  # noqa: PTH100
