"""History feature: the ids of the user's earlier rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sparring.errors import DataError
from sparring_train.columns import Column
from sparring_train.config.sections.table import HistoryConfig, TableData
from sparring_train.data.table.decode import Decoder, RawRows, select_columns
from sparring_train.data.table.split import parse_times

__all__ = ["Histories", "read_histories"]

Ids = npt.NDArray[np.int64]

_MAX_ROWS = 100_000_000


def read_histories(
    data: TableData, read: Callable[[Sequence[str]], Iterator[RawRows]]
) -> Histories | None:
    """Reads users, items and times of all rows, and returns their histories; None if not configured.

    Raises:
        DataError: a column does not contain ids or times, or there are too many rows for memory.
    """
    if data.history is None or data.time is None:
        return None
    history = data.history
    decoder = Decoder(select_columns(data, categorical=tuple({history.by: 0, history.of: 0})), None)
    names = tuple(dict.fromkeys((history.by, history.of, data.time)))
    users, items, times, places = [], [], [], []
    num_rows = 0
    for rows in read(names):
        num_rows = rows.position + len(rows)
        if num_rows > _MAX_ROWS:
            raise DataError(
                f"data.history: needs 32 bytes of memory per row, and supports at most {_MAX_ROWS:,} "
                "rows, found more; write histories to a list column, and add it to data.lists"
            )
        batch, _ = decoder.decode(rows)
        by, of = batch.ids[history.by], batch.ids[history.of]
        has_by, has_of = (each.counts.astype(np.bool_) for each in (by, of))
        both = has_by & has_of
        users.append(by.ids[both[has_by]])
        items.append(of.ids[both[has_of]])
        times.append(parse_times(rows, data.time)[both])
        places.append(np.flatnonzero(both) + rows.position)
    return Histories(history, num_rows, *map(np.concatenate, (users, items, times, places)))


class Histories:
    """Rows with a user and an item, sorted by user and time.

    Args:
        history: the section of the configuration.
        num_rows: number of rows in all files.
        users: ``(n,)``
        items: ``(n,)``
        times: ``(n,)``
        places: ``(n,)``, positions of the rows in all files.
    """

    def __init__(
        self,
        history: HistoryConfig,
        num_rows: int,
        users: Ids,
        items: Ids,
        times: npt.NDArray[np.float64] | Ids,
        places: Ids,
    ) -> None:
        self.name, self._length = history.name, history.length
        order = np.lexsort((places, times, users))
        self._items = items[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = users[order][1:] != users[order][:-1]
        here = np.arange(len(order))
        self._first = np.maximum.accumulate(np.where(is_first, here, 0))
        self._at = np.full(num_rows, -1, np.int64)
        self._at[places[order]] = here

    def column(self, rows: RawRows) -> Column:
        """Returns the items before each row, oldest first; none for a row without user or item."""
        at = self._at[rows.position : rows.position + len(rows)]
        lengths = np.zeros(len(at), np.int64)
        known = at >= 0
        lengths[known] = np.minimum(at[known] - self._first[at[known]], self._length)
        in_list = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Column(self._items[np.repeat(at - lengths, lengths) + in_list], lengths)
