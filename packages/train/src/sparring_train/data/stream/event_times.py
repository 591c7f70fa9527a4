"""Times of events: of a column, of their messages, or of their arrival."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import types

from sparring_train.config.sections.stream import EventTimeUnit, StreamData
from sparring_train.data.table.decode import BadValue, RawRows, make_bad_row_error

__all__ = ["EventTimes"]

Times = npt.NDArray[np.float64]

_PER_SECOND: dict[EventTimeUnit, float] = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6}
_TIMESTAMPS_PER_SECOND = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}
_EXPECTED = (
    "a timestamp, or a number since 1970 in the unit of data.event_time_unit, before year 10000"
)
_YEAR_10000 = 253_402_300_800


class EventTimes:
    """Reads the times of events.

    Args:
        data: the section of the configuration.
    """

    def __init__(self, data: StreamData) -> None:
        self._name = data.event_time
        self._per_second = _PER_SECOND[data.event_time_unit]
        self._max_future_seconds = data.max_future_seconds

    def read(self, rows: RawRows, stamps: Times, read_times: Times) -> Times | None:
        """Returns the times of events in seconds since 1970, ``(n,)``; None if they are unknown.

        Args:
            rows: the n events.
            stamps: ``(n,)``, times of the messages; NaN if a message has none.
            read_times: ``(n,)``, times at which the messages were read; NaN if it was not recorded.

        Raises:
            DataError: a value is not a time, or is too far in the future.
        """
        if self._name is None:
            times = np.where(np.isnan(stamps), read_times, stamps)
            return None if np.isnan(times).any() else times
        array = rows.columns[self._name]
        times = self._seconds(array)
        is_good, expected = (times >= 0) & (times < _YEAR_10000), _EXPECTED
        if is_good.all():
            # Nothing is later than a time that was not recorded.
            is_good = ~(times > read_times + self._max_future_seconds)
            expected = (
                f"a time at most {self._max_future_seconds:g} s later than this machine's clock, because "
                "of data.max_future_seconds; check data.event_time_unit and the producer's clock"
            )
        if not is_good.all():
            row = int(np.argmin(is_good))
            bad = BadValue(row, self._name, repr(array[row].as_py()), expected)
            raise make_bad_row_error(rows.file, rows.first_row + row, bad)
        return times

    def _seconds(self, array: Any) -> Times:
        """Returns times, which are NaN if a value is missing or no number."""
        kind, per_second = array.type, self._per_second
        if types.is_timestamp(kind):
            array, per_second = array.cast(pyarrow.int64()), _TIMESTAMPS_PER_SECOND[kind.unit]
        elif not (types.is_integer(kind) or types.is_floating(kind)):
            return np.full(len(array), np.nan)
        values = array.cast(pyarrow.float64(), safe=False).fill_null(np.nan)
        seconds: Times = values.to_numpy(zero_copy_only=False) / per_second
        return seconds
