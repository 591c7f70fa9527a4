"""Keys and embeddings of a snapshot, for commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sparring import Snapshot, hash_strings, scan_rows
from sparring.contracts import partition, read_embeddings
from sparring.errors import NotFoundError
from sparring_cli import read_embedding_parts

__all__ = ["find_embedding", "embeddings", "find_key", "parse_candidate_keys", "read_keys"]

Ids = npt.NDArray[np.int64]


def find_key(snapshot: Snapshot, table: str, text: str) -> int:
    """Returns the key for a number or a string that a user entered. If the text may mean several
    keys, returns the key that has a row.

    Raises:
        NotFoundError: no such key has a row.
    """
    for key in parse_candidate_keys(text):
        if find_embedding(snapshot, table, key) is not None:
            return key
    raise NotFoundError(
        f"table {table!r}: {text!r} has no row in snapshot {snapshot.url}; it was never trained, or "
        "was evicted. `sparring export` lists all keys",
        table=table,
    )


def parse_candidate_keys(text: str) -> list[int]:
    """Returns the keys that a text may mean: its number, if it is a whole number, and its hash.

    An unsigned number of at least 2^63 means the key with the same 64 bits; see `data.types`.
    """
    candidates = [int(hash_strings([text])[0])]
    # `int` would also accept 1_0 and digits of other scripts, which are strings in files.
    if re.fullmatch("[+-]?[0-9]{1,40}", text) is None:
        return candidates
    number = int(text)
    if not -(2**63) <= number < 2**64:
        return candidates
    return [number - 2**64 if number >= 2**63 else number, *candidates]


def find_embedding(snapshot: Snapshot, table: str, key: int) -> npt.NDArray[np.floating] | None:
    """Returns the embedding of a key ``(dim,)``, without parts such as a bias; None without a row."""
    its_partition = int(partition(np.array([key], np.int64))[0])
    for keys, found in embeddings(snapshot, table, [its_partition]):
        at = np.flatnonzero(keys == key)
        if len(at):
            row: npt.NDArray[np.floating] = found[at[0]]
            return row
    return None


def embeddings(
    snapshot: Snapshot, table: str, partitions: list[int] | None = None
) -> Iterator[tuple[Ids, npt.NDArray[np.floating]]]:
    """Yields keys ``(n,)`` and embeddings ``(n, dim)`` of a table, in chunks.

    Raises:
        InvalidArgumentError: there is no such table.
        SnapshotError: the snapshot is damaged.
    """
    snapshot.check_table(table)
    config = snapshot.tables[table].config
    part = read_embedding_parts(snapshot, table, config.dim)["embedding"]
    for chunk in scan_rows(snapshot, table, range(4096) if partitions is None else partitions):
        rows = np.array(read_embeddings(config, chunk.rows))
        yield chunk.keys, rows[:, part]


def read_keys(snapshot: Snapshot, table: str) -> Ids:
    """Returns all keys of a table, sorted."""
    parts = [keys for keys, _ in embeddings(snapshot, table)]
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
