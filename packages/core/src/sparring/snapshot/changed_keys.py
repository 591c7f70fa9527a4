"""Index of the keys that a delta changed or erased, with which a search for one key skips most deltas.

Each rank that writes a delta stores the keys of its files again, sorted, as the state `changed_keys`:

    values   {"first_keys": {"item": [-7, 1310, …]}}     every 131,072nd key, so that a search reads 1 MiB
    arrays   keys.item  (n) int64                        changed and erased keys, ascending, unique

The index is redundant: without it, the files of the delta are searched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

import numpy as np

from sparring.contracts.storage.results import Keys
from sparring.snapshot.format.data_file import SnapshotState, decode_state_values
from sparring.snapshot.format.manifest import BLOCK_BYTES, STATE_HEADER_BYTES, FileEntry
from sparring.snapshot.format.rows_file import BlockReader
from sparring.snapshot.place.place import reading
from sparring.snapshot.reader import Snapshot

__all__ = ["CHANGED_KEYS", "has_changed", "index_keys", "index_without"]

CHANGED_KEYS = "changed_keys"
"""Name of the state that contains the index."""

_RUN_KEYS = BLOCK_BYTES // 8
"""Number of keys that a search reads."""


def index_keys(changed: Mapping[str, Iterable[Keys]]) -> SnapshotState:
    """Returns the index of keys that one rank has changed or erased.

    Args:
        changed: Table → arrays ``(n,)`` of its keys, in any order; they may repeat.
    """
    arrays = {
        table: np.unique(np.concatenate([np.empty(0, np.int64), *keys]))
        for table, keys in changed.items()
    }
    first_keys = {table: keys[::_RUN_KEYS].tolist() for table, keys in arrays.items()}
    return SnapshotState(
        {"first_keys": first_keys}, {f"keys.{table}": keys for table, keys in arrays.items()}
    )


def index_without(index: SnapshotState, table: str, keys: Keys) -> SnapshotState | None:
    """Returns an index without some keys of a table, or None if it contains none of them."""
    known = {name.partition(".")[2]: array for name, array in index.arrays.items()}
    if table not in known or not np.isin(known[table], keys).any():
        return None
    left = known | {table: np.setdiff1d(known[table], keys)}
    return index_keys({name: [array] for name, array in left.items()})


def has_changed(snapshot: Snapshot, table: str, key: int) -> bool:
    """Returns whether a key may be in a delta's own files; True if the snapshot has no index.

    Args:
        snapshot: Snapshot whose own files are meant, without its base.
        table: Name of the table.
        key: The key.

    Raises:
        SnapshotDamagedError: The index is damaged.
        SnapshotIOError: The file system failed.
    """
    indexes = [each for each in snapshot.files(kind="state") if each.state == CHANGED_KEYS]
    if snapshot.base is None or len(indexes) < snapshot.world_size:
        return True
    return any(_contains(snapshot, entry, table, key) for entry in indexes)


def _contains(snapshot: Snapshot, entry: FileEntry, table: str, key: int) -> bool:
    with reading(snapshot.url, entry.name):
        folder = snapshot.place.open(snapshot.name)
    with folder, BlockReader(snapshot.url, folder, entry) as reader:
        header, begin = reader.header(STATE_HEADER_BYTES)
        tensor = next((each for each in header.tensors if each.name == f"keys.{table}"), None)
        if tensor is None:
            return False
        count = tensor.shape[0] if len(tensor.shape) == 1 else -1
        try:
            firsts = decode_state_values(header)["first_keys"][table]
            is_valid = tensor.code == "I64" and len(firsts) == -(-count // _RUN_KEYS)
            number = bisect_right(firsts, key) - 1
        except (ValueError, KeyError, TypeError) as error:
            raise reader.damaged_error(
                8, f"found no valid first keys of table {table!r} ({error!r})"
            ) from error
        if not is_valid:
            raise reader.damaged_error(
                8, f"found {len(firsts)} first keys for a tensor {tensor.code} {tensor.shape}"
            )
        if number < 0:
            return False
        offset = begin + tensor.begin + 8 * _RUN_KEYS * number
        end = min(offset + 8 * _RUN_KEYS, begin + tensor.end)
        keys: Keys = np.frombuffer(reader.read(offset, end).tobytes(), np.int64)
        if keys[0] != firsts[number] or not (keys[1:] > keys[:-1]).all():
            raise reader.damaged_error(
                offset, "its keys are not in the order of the index, expected ascending keys"
            )
        place = int(np.searchsorted(keys, key))
        return place < len(keys) and int(keys[place]) == key
