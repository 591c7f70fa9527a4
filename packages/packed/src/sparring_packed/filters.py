"""Bloom filters in a serving snapshot: of existing ids and of changed ids."""

from __future__ import annotations

import os

from sparring.adapter import BloomFilter, locate, reading
from sparring.errors import InvalidArgumentError, SnapshotDamagedError
from sparring_packed.manifest import ServingManifest, read_manifest, text_hash

__all__ = ["read_filter"]


def read_filter(
    url: str | os.PathLike[str], table: str, kind: str, manifest: ServingManifest | None = None
) -> BloomFilter | None:
    """Reads and verifies a filter. Returns None if the snapshot has no filter of this kind.

    Args:
        url: URL of the serving snapshot.
        table: name of the table.
        kind: ``existing`` or ``changed``.
        manifest: its manifest, if it was read before.

    Raises:
        SnapshotDamagedError: the filter is damaged.
        SnapshotIOError: the file system failed.
    """
    files = (manifest or read_manifest(url)).files
    entries = [entry for entry in files if (entry.table, entry.kind) == (table, kind)]
    if not entries:
        return None
    entry = entries[0]
    place, name = locate(url)
    with reading(str(url), entry.name), place.open(name) as folder, folder.open(entry.name) as file:
        data = bytearray(min(file.size_bytes, entry.size_bytes))
        file.read_into(0, memoryview(data))
    if len(data) != entry.size_bytes or text_hash(bytes(data)) != entry.hash:
        raise _damaged(url, entry.name, "its size or hash differs from the manifest")
    try:
        return BloomFilter.from_bytes(bytes(data))
    except InvalidArgumentError as error:
        raise _damaged(url, entry.name, str(error)) from error


def _damaged(url: str | os.PathLike[str], file: str, reason: str) -> SnapshotDamagedError:
    return SnapshotDamagedError(
        f"serving snapshot {url}: {file} is damaged: {reason}; copy or publish it again",
        url=str(url),
        file=file,
        offset=0,
    )
