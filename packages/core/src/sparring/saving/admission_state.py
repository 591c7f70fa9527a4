"""Counters of admission filters, as ranks save and take them over.

Each rank counts the keys that it owns. Where the snapshot was made by the same ranks that own the
same partitions, a filter takes over its own counters. Otherwise:

    frequency     every rank takes the counts of its keys from all filters: exact
    probability   remembers nothing
    bloom         the largest of each counter of all filters: no key is admitted later than it would
                  have been, and some may be earlier, as the filters of several ranks share one
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparring.admission import Bloom, Frequency, Probability
from sparring.errors import CorruptDataError, UnsupportedError
from sparring.kernels import partition
from sparring.rendezvous import ShardMap
from sparring.storage.contract import Keys
from sparring.table import TableConfig

__all__ = ["join_filters"]

# docs/format/admission.md: magic, version, kind; k, forgotten, number of keys.
_HEADER = struct.Struct("<8sII3Q")


def join_filters(
    made: Any, table: TableConfig, saved: Sequence[bytes], shards: ShardMap, rank: int
) -> None:
    """Puts into an empty filter what the filters of all ranks had counted of this rank's keys.

    Args:
        made: the native filter of `table` on this rank, with nothing counted.
        saved: what the filters of the ranks that made the snapshot have saved.

    Raises:
        InvalidArgumentError: one was declared otherwise.
        UnsupportedError: a filter of a kind that nobody knows how to join.
    """
    admission = table.admission
    if isinstance(admission, Probability):
        made.load(saved[0])
    elif isinstance(admission, Bloom):
        for each in saved:
            made.join(each)
    elif isinstance(admission, Frequency):
        for each in saved:
            # By a filter of its own, which checks all of the bytes.
            admission.make(table.seed, table.name).load(each)
            _record(made, each, None if table.is_replicated else shards, rank)
    else:
        raise UnsupportedError(
            f"admission of table {table.name!r}: counters of {type(admission).__name__} cannot be "
            "divided among other ranks; load with as many ranks as saved",
            table=table.name,
        )


def _record(made: Any, saved: bytes, shards: ShardMap | None, rank: int) -> None:
    """Counts each key of one saved frequency filter as often as it came."""
    if len(saved) < _HEADER.size:
        raise CorruptDataError("saved counters of an admission filter end early")
    num_keys = _HEADER.unpack_from(saved)[-1]
    keys: Keys = np.frombuffer(saved, np.int64, num_keys, _HEADER.size)
    counts = np.frombuffer(saved, np.uint32, num_keys, _HEADER.size + keys.nbytes)
    if shards is not None:
        is_mine = shards.owners[partition(keys)] == rank
        keys, counts = keys[is_mine], counts[is_mine]
    for count in range(int(counts.max(initial=0))):
        again = np.ascontiguousarray(keys[counts > count])
        made.record(again, np.zeros(len(again), np.bool_))
