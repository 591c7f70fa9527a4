"""`RowAges`: the ages of the rows that events read, for windows of event time.

    keys of all ranks ──► has the owner a row? ──► no: new, and its time is remembered
                                  └─ yes: time remembered? ──► age, or older

Rows contain no time of creation. Instead, every rank remembers the keys that had no row when they were
first read, with the event time of that step. Keys that are older than the longest age are forgotten.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import StepContainer, TableConfig, open_storage
from sparring.contracts import Columns
from sparring.errors import ConfigError
from sparring_train.columns import ColumnBatch
from sparring_train.config.run import RunConfig
from sparring_train.live.windows import Dimension
from sparring_train.run.ranks import Ranks

__all__ = ["RowAges"]

_MAX_KEYS = 1 << 22
"""Number of remembered keys, of which the newest half remains when there are more."""
_LEAST_KEYS = 1 << 16

Ints = npt.NDArray[np.int64]


class RowAges:
    """Finds the ages of rows, as slices of a dimension. All ranks create one and make the same calls.

    Args:
        container: container of the tables.
        config: configuration of the run, with `metrics.row_age`.
        ranks: ranks of the run.

    Raises:
        ConfigError: the model does not read rows of the feature.
    """

    def __init__(self, container: StepContainer, config: RunConfig, ranks: Ranks) -> None:
        chosen = config.metrics.row_age
        assert chosen is not None
        feature = config.data.columns.feature(chosen.feature)
        assert feature is not None
        self._feature, self._table = feature.name, feature.table_name
        if self._table not in container.tables:
            raise ConfigError(
                f"metrics.row_age.feature: found {self._feature!r}, but the model reads no rows of it; "
                f"choose a feature of one of the tables {', '.join(container.tables)}",
                setting="metrics.row_age.feature",
            )
        self._container, self._ranks = container, ranks
        self._seconds = np.array(chosen.seconds)
        bounds = (f"up to {each:g} s" for each in chosen.seconds)
        self.dimension = Dimension(f"age of {self._feature}", ("new", *bounds, "older"))
        # Key → event time at which its row was created.
        times = TableConfig("created", dim=1, dtype="float64", initializer="zeros")
        self._created = open_storage("memory", times)
        self._limit = _LEAST_KEYS
        self._now = -np.inf
        # Of each batch that was read, but whose step is not yet made: its keys without a row.
        self._coming: deque[Ints] = deque()

    def codes(self, batch: ColumnBatch) -> Ints:
        """Returns the place of each event's age among the values of `dimension`, ``(b,)``; -1 if the
        event has no id. All ranks call it before the step of the batch, in the order of steps.

        Args:
            batch: this rank's events of the step.
        """
        if batch.cut is not None and batch.cut.event_time is not None:
            self._now = max(self._now, batch.cut.event_time)
        column = batch.ids[self._feature]
        keys = np.unique(self._ranks.gathered(np.unique(column.ids)))
        is_new = ~self._have_rows(keys)
        # The steps of earlier batches create these rows.
        for each in self._coming:
            is_new &= ~np.isin(keys, each)
        known = self._created.find(keys)
        created = np.where(known.found, known.rows[:, 0], -np.inf)
        self._coming.append(keys[is_new])
        self._remember(keys[is_new])
        places = np.searchsorted(keys, column.ids)
        times = np.full(len(batch), np.nan) if batch.event_times is None else batch.event_times
        has_id = column.counts > 0
        ages = times[has_id] - created[places]
        found = np.where(is_new[places], 0, 1 + np.searchsorted(self._seconds, ages))
        codes = np.full(len(batch), -1, np.int64)
        codes[has_id] = found
        return codes

    def after_step(self) -> None:
        """Notes that the step of the oldest batch was made."""
        self._coming.popleft()

    def _have_rows(self, keys: Ints) -> npt.NDArray[np.bool_]:
        """Returns whether each key has a row on any rank."""
        self._container.num_rows(self._table)  # Opens rows of an earlier process.
        storage = self._container.entry(self._table).parts[0].storage
        found = np.zeros(len(keys), np.int64)
        if storage is not None and len(keys):
            found[:] = storage.find(keys, Columns(0, 1)).found
        have: Any = self._ranks.sum(found) > 0
        return have  # type: ignore[no-any-return]

    def _remember(self, keys: Ints) -> None:
        self._created.upsert(keys, np.full((len(keys), 1), self._now))
        if self._created.size <= self._limit:
            return
        chunks = list(self._created.scan())
        known = np.concatenate([each.keys for each in chunks])
        times = np.concatenate([each.rows[:, 0] for each in chunks])
        oldest = self._now - self._seconds[-1]
        if len(known) > _MAX_KEYS:
            oldest = max(oldest, np.median(times))
        self._created.erase(known[times < oldest])
        self._limit = min(_MAX_KEYS, max(_LEAST_KEYS, 2 * self._created.size))
