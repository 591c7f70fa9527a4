"""Rows that an update will need, found while gradients still travel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sparring.exchange.beside import Job, Lane
from sparring.exchange.reply import find_rows
from sparring.exchange.requests import Pulled, PushRequest
from sparring.storage.contract import Columns, Keys
from sparring.trace import Trace

__all__ = ["FindAhead"]


class FindAhead:
    """Finds the rows of keys as soon as the first gradient for them was added up.

    Args:
        requests: those with a storage want their rows.
        accumulators: what gradients are added up in, one for each request.
        lane: where rows are found.
    """

    def __init__(
        self, requests: Sequence[PushRequest], accumulators: Sequence[Any], lane: Lane
    ) -> None:
        self._requests = requests
        self._accumulators = accumulators
        self._lane = lane
        self._num_known = [0] * len(requests)
        self._parts: list[list[Pulled]] = [[] for _ in requests]
        self._jobs: list[Job] = []

    def advance(self) -> None:
        """Begins to find what has become known since the last call."""
        for place, request in enumerate(self._requests):
            if request.storage is None:
                continue
            keys = self._accumulators[place].keys_from(self._num_known[place])
            if len(keys):
                self._num_known[place] += len(keys)
                self._jobs.append(self._lane.submit(partial(self._find, place, keys)))

    @property
    def is_done(self) -> bool:
        """Whether nothing is being found."""
        return all(job.is_done for job in self._jobs)

    @property
    def error(self) -> BaseException | None:
        """What a storage raised first."""
        return next((job.error for job in self._jobs if job.error is not None), None)

    def trace(self, trace: Trace | None) -> None:
        """Tells when rows were found."""
        if trace is not None:
            for job in self._jobs:
                trace.add("find", job.begin_ns, job.end_ns, {"of": "push"}, thread_id=job.thread_id)

    def found(self, place: int) -> Pulled | None:
        """The rows of a request, in the order of the accumulator's keys."""
        if self._requests[place].storage is None or not self._parts[place]:
            return None
        parts = self._parts[place]
        if len(parts) == 1:
            return parts[0]
        return Pulled(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.found for part in parts]),
        )

    def _find(self, place: int, keys: Keys) -> None:
        request = self._requests[place]
        assert request.storage is not None
        table = request.storage.table
        # Jobs of a lane run in order, and so parts are in the order of the keys.
        whole = Columns(0, table.width)
        self._parts[place].append(find_rows(request.storage, table, keys, whole))
