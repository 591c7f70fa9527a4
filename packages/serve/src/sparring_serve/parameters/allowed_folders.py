"""URLs that a service may save to and load from."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from sparring_serve.status import Status, StatusError

__all__ = ["snapshot_url"]

_NAME = re.compile(r"\w[\w .,=+@-]{0,254}\Z")
_MAX_SHOWN = 200


def snapshot_url(url: str, folders: Sequence[str]) -> str:
    """Returns the URL of a snapshot in one of the folders of a service.

    Only the text decides, and nothing is opened: neither another file system, nor a chain of them, nor
    a path through ``..`` or escapes leads out of the folders.

    Args:
        url: name of a snapshot in the first folder, or URL of one in any of the folders.
        folders: `parameters.folders`.

    Raises:
        Refusal: it is neither.
    """
    folder, has_folder, name = url.rstrip("/").rpartition("/")
    if not _NAME.match(name):
        raise StatusError(
            Status.INVALID_ARGUMENT,
            f"{url[:_MAX_SHOWN]!r} is not the name of a snapshot; give a name of at most 255 letters, "
            "digits, and any of ' .,=+@_-' behind the first, or a URL that ends with such a name",
            reason="url",
        )
    if not has_folder:
        return f"{folders[0].rstrip('/')}/{name}"
    asked = _as_text(folder)
    for known in folders:
        if asked in (_as_text(known), _real_path(known)):
            return f"{known.rstrip('/')}/{name}"
    raise StatusError(
        Status.INVALID_ARGUMENT,
        f"{url[:_MAX_SHOWN]!r} is in none of the folders that this service saves to and loads from "
        f"({', '.join(folders)}); name a snapshot there, or add its folder to parameters.folders",
        reason="url",
    )


def _is_local(folder: str) -> bool:
    return "://" not in folder.removeprefix("file://") and "::" not in folder


def _as_text(folder: str) -> str:
    """Returns a folder in the form to compare: local paths are absolute, other URLs stay as they are."""
    if not _is_local(folder):
        return folder.rstrip("/")
    # Path.resolve would look at the file system.
    return os.path.abspath(folder.removeprefix("file://"))  # noqa: PTH100


def _real_path(known: str) -> str:
    """Returns a configured folder with links resolved, as lists of snapshots name it."""
    return os.path.realpath(known.removeprefix("file://")) if _is_local(known) else known
