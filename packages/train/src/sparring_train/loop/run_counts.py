"""`RunCounts`: rows and counters of a run, over all ranks."""

from __future__ import annotations

from typing import Any

from sparring_train.config.run import RunConfig
from sparring_train.loop.column_source import ColumnSource
from sparring_train.loop.model import Trainer
from sparring_train.run.ranks import Ranks, sum_over_ranks

__all__ = ["RunCounts"]


class RunCounts:
    """Adds the counters of ranks. All ranks make the same calls.

    Args:
        config: configuration of the run.
        source: its data.
        trainer: its model.
        ranks: its ranks.
    """

    def __init__(
        self, config: RunConfig, source: ColumnSource, trainer: Trainer, ranks: Ranks
    ) -> None:
        self._config, self._source, self._trainer, self._ranks = config, source, trainer, ranks
        self._container = trainer.container

    def rows(self) -> dict[str, int]:
        """Returns table → number of rows."""
        container = self._container
        return self._total({name: container.num_rows_to_sum(name) for name in container.tables})

    def not_admitted(self) -> dict[str, int]:
        """Returns table → number of gradients that its admission filter rejected, if it has one."""
        container = self._container
        return self._total(
            {
                name: container.num_not_admitted(name)
                for name, table in container.tables.items()
                if table.admission is not None
            }
        )

    def _total(self, counts: dict[str, int]) -> dict[str, int]:
        """Returns table → sum over ranks. A replicated table is counted once."""
        tables = self._container.tables
        is_first = self._ranks.is_first
        return self._ranks.total(
            {
                name: count if is_first or not tables[name].is_replicated else 0
                for name, count in counts.items()
            }
        )

    def tiers(self) -> dict[str, list[dict[str, Any]]]:
        """Returns table → counters of its tiers."""
        container = self._container
        counted = {name: container.tier_counters(name) for name in container.tables}
        return {
            name: [each.as_dict() for each in sum_over_ranks(tiers, self._ranks)]
            for name, tiers in counted.items()
            if tiers
        }

    def skipped(self) -> dict[str, int]:
        """Returns the numbers of skipped rows and steps; see `TrainResult.skipped`."""
        counters = self._container.counters
        told: dict[str, int] = self._ranks.total(self._source.skipped())
        if any(table.expire is not None for table in self._container.tables.values()):
            told |= self._ranks.total({"rows_expired": counters.rows_expired})
        if self._config.training.non_finite_gradients == "skip":
            skipped = {"rows_skipped_non_finite": counters.rows_skipped_non_finite}
            told |= {**self._ranks.total(skipped), **self._trainer.skipped()}
        return told
