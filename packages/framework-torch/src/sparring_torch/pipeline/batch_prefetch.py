"""Prefetches the lookups of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring import StepContainer
from sparring.adapter import Prefetch
from sparring.contracts import Dedup
from sparring_torch.lookup.host_path import PlannedBatch
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.pipeline.batch_paths import Call

__all__ = ["BatchPrefetch"]

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Planned:
    agent: TrainAgent
    batch: PlannedBatch


class BatchPrefetch:
    """Looks up all tables of all modules in one exchange, on a background thread, which also
    deduplicates the ids.

    Args:
        container: the container of the tables.
        calls: calls of the modules, in the order of the forward pass.
        batch: the batch with which the model will be called.

    Raises:
        Exception: a module rejects the batch. With several ranks, `give` raises it on all of them.
    """

    def __init__(self, container: StepContainer, calls: Sequence[Call], batch: Any) -> None:
        self._planned: list[_Planned] = []
        own_error: Exception | None = None
        try:
            self._planned = [_plan_call(call, batch) for call in calls]
        except Exception as error:
            if container.collective.world_size == 1:
                raise
            own_error = error
        tables = [table for each in self._planned for table in each.batch.tables]
        if own_error is not None:
            tables = list(
                dict.fromkeys(name for call in calls for name in call.module.agent.table_names)
            )
        requests = [(table, _NOTHING) for table in tables]
        self._prefetch = Prefetch(container.state, requests, own_error, self._dedup)

    def _dedup(self) -> list[Dedup]:
        return [found for each in self._planned for found in each.batch.dedup()]

    def give(self) -> None:
        """Passes the prefetched lookups to the modules, for the forward pass that starts now.

        Raises:
            SparringError: see `StepContainer.lookup_all`.
        """
        lookups = iter(self._prefetch.finish())
        by_agent: dict[int, list[PlannedBatch]] = {}
        for each in self._planned:
            each.batch.lookups = [next(lookups) for _ in each.batch.tables]
            by_agent.setdefault(id(each.agent), []).append(each.batch)
        for each in self._planned:
            each.agent.host.set_prefetched(by_agent[id(each.agent)])

    def withdraw(self) -> None:
        """Removes lookups that the modules did not use."""
        for each in self._planned:
            each.agent.host.set_prefetched(())

    def drop(self) -> None:
        """Discards the lookups, if the batch is not used."""
        self._prefetch.drop()


def _plan_call(call: Call, batch: Any) -> _Planned:
    arguments, named = call.on(batch)
    agent = call.module.agent
    return _Planned(agent, agent.host.plan_ahead(call.module.parse_input(*arguments, **named)))
