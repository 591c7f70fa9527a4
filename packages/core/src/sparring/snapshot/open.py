"""The place and the name of a snapshot's URL."""

from __future__ import annotations

import os
from pathlib import Path

from sparring.contracts.secrets import has_password
from sparring.errors import InvalidArgumentError
from sparring.snapshot.place.place import Place

__all__ = ["locate", "open_place"]


def open_place(root_url: str | os.PathLike[str]) -> Place:
    """Opens the folder that holds snapshots.

    Raises:
        InvalidArgumentError: no file system goes by that URL, it names no folder, or
            it holds a password.
        SnapshotIOError: its file system cannot be reached.
    """
    from sparring.snapshot.place.local import LocalPlace

    text = os.fspath(root_url)
    _refuse_password(text)
    _check_names_a_folder(text)
    scheme, is_url, path = text.partition("://")
    if not is_url:
        return LocalPlace(Path(os.path.realpath(text)))
    if scheme == "file":
        return LocalPlace(Path(os.path.realpath(path)))
    from sparring.snapshot.place.remote import open_remote_place

    return open_remote_place(text)


def locate(url: str | os.PathLike[str]) -> tuple[Place, str]:
    """The place that holds a snapshot, and its name there.

    Raises:
        InvalidArgumentError: the URL names no folder within another.
    """
    given = os.fspath(url)
    _refuse_password(given)
    _check_names_a_folder(given)
    text = given.rstrip("/") or given
    scheme, is_url, path = text.partition("://")
    if not is_url or scheme == "file":
        local = Path(os.path.realpath(path if is_url else text))
        parent, name = str(local.parent), local.name
    else:
        parent, _, name = text.rpartition("/")
    if not name or parent.endswith(":/"):
        raise InvalidArgumentError(
            f"snapshot {url}: names no folder within another; give one like runs/step-000000123"
        )
    return open_place(parent), name


def _check_names_a_folder(text: str) -> None:
    """Refuses an empty path, which would mean the current folder."""
    scheme, is_url, path = text.partition("://")
    if not scheme or (is_url and not path):
        raise InvalidArgumentError(
            f"{text!r} names no folder; give a path as runs/a, or a URL as s3://bucket/runs/a",
            url=text,
        )


def _refuse_password(url: str) -> None:
    """Refuses a URL with a password: messages, metrics and other ranks show it."""
    if has_password(url):
        raise InvalidArgumentError(
            "the URL of a snapshot must hold no password, because it is printed; give it by the "
            "variables or files of the file system, as AWS_SECRET_ACCESS_KEY or fsspec's "
            "configuration"
        )
