"""Computes the day on which growing tables fill a rank's memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from sparring_plan.planning.costs.storages import make_storage_models
from sparring_plan.planning.costs.unique_keys import Floats
from sparring_plan.planning.inputs import Calibration, PlanInputs
from sparring_plan.planning.search.placement import Placement

__all__ = ["FullDay", "find_first_full_day"]

_MAX_DAYS = 36_500.0
_NUM_DAYS = 96


@dataclass(frozen=True, slots=True)
class FullDay:
    """The first day on which the memory of a rank is full.

    Args:
        day: Days from the start of growth; None if memory is not full within a hundred years.
        rank: The first rank whose memory is full.
        memory: Kind of memory.
    """

    day: int | None
    rank: int = 0
    memory: str = ""

    def text(self, start: date | None) -> str:
        if self.day is None:
            return "not within 100 years"
        when = f"day {self.day}"
        if start is not None:
            with suppress(OverflowError):  # a start at the end of the calendar
                when = f"{(start + timedelta(days=self.day)).isoformat()}, {when}"
        return f"{when}: {self.memory} of rank {self.rank}"


def find_first_full_day(
    placement: Placement, inputs: PlanInputs, calibration: Calibration
) -> FullDay | None:
    """Returns when growing tables fill the memory of a rank; None if no table grows."""
    options = placement.options
    growing = [
        table for table, name in enumerate(options.table_names) if inputs.tables[name].growth
    ]
    if not growing:
        return None
    models = {
        model.name: model for model in make_storage_models(inputs, calibration, options.table_names)
    }

    def kept(table: int, rows: float) -> Floats:
        """Bytes on a rank that owns a shard, (memories,)."""
        option = int(placement.option[table])
        shape = options.shape_of(option)
        share = 1.0 if shape.kind == "data_parallel" else shape.row_share
        model = models[options.storages[options.storage[option]]]
        each = model.bytes(np.asarray([rows * share]), np.asarray([table]), shape.num_columns)
        found: Floats = each[0]
        return found

    def excess(day: float) -> Floats:
        """Bytes above the capacity, (ranks, memories)."""
        memory = placement.memory - options.capacity
        for table in growing:
            spec = inputs.tables[options.table_names[table]]
            assert spec.growth is not None
            more = kept(table, max(spec.growth.rows_on(day), 1.0)) - kept(table, spec.expected_rows)
            ranks = placement.ranks(table)
            memory[ranks if len(ranks) else slice(None)] += more
        return memory

    days = np.geomspace(1.0, _MAX_DAYS, _NUM_DAYS)
    last = next((day for day in days if (excess(day) > 0).any()), None)
    if last is None:
        return FullDay(None)
    first = float(max(days[days < last], default=0.0))
    while last - first > 1:
        middle = (first + last) / 2
        if (excess(middle) > 0).any():
            last = middle
        else:
            first = middle
    rank, kind = np.unravel_index(np.argmax(excess(last)), placement.memory.shape)
    return FullDay(int(np.ceil(last)), int(rank), options.memories[int(kind)])
