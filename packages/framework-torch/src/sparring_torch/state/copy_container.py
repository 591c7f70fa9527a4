"""`CopyContainer`: the tables of a copied model, which may be averages of the tables of another model."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sparring import SaveOptions, StepContainer
from sparring.adapter import IndependentRendezvous, Lookup, Prefetch
from sparring.contracts import ShardMap, Storage
from sparring.errors import CapacityError
from sparring_torch.state.copied_rows import Keys, check_whole
from sparring_torch.state.row_averages import TableAverage

__all__ = ["CopyContainer", "drop_state", "list_averages"]


class CopyContainer(StepContainer):
    """Container of a copied model, whose tables may be averages of the tables of another model.

    Args:
        original: container of the other model. If it has several ranks, the tables are sharded in the
            same way, and lookups use its exchange, because a collective supports only one.
        **settings: more arguments of `StepContainer`.
    """

    def __init__(self, original: StepContainer | None = None, **settings: Any) -> None:
        self.averages: dict[str, TableAverage] = {}
        """Averages by table."""
        self.successor: CopyContainer | None = None
        """The container that the tables joined when the other model was found on several ranks."""
        self._own: Sequence[Any] = ()
        """What `close` closes, because the container belongs to the other model."""
        if original is None or original.collective.world_size == 1:
            super().__init__(**settings)
            return
        plan = original.state.tables.layouts.plan
        super().__init__(rendezvous=_SameRanks(original), plan=plan, **settings)
        self._own = (self.collective, self.exchange, self.prefetches, self.loads)
        for holder in (self, self.state):
            holder.collective = original.collective
            holder.exchange = original.exchange
            # Reads wait until those of the other model do not use the exchange.
            holder.prefetches, holder.loads = original.prefetches, original.loads

    def close(self) -> None:
        """See `StepContainer.close`. The exchange and the collective of the other model stay open."""
        if self._own and not self.state.is_closed:
            self.collective, self.exchange, self.prefetches, self.loads = self._own
        super().close()

    def average(self, table: str, source: StepContainer, weight: float) -> None:
        """Averages all rows of a table with those of `source`: ``e += weight · (p - e)``.

        Args:
            table: name of the table in both containers.
            source: the container of the averaged model.
            weight: from 0 to 1.

        """
        self.quiesce()
        source.quiesce()
        for each in (self, source):
            check_whole(each, table)
        if isinstance(source, CopyContainer):
            source.bring_up_to_date([table])
        known = self.averages.get(table)
        if known is None:
            drop_state(self, table)
            known = self.averages[table] = TableAverage(self, table)
        self.saves.join()
        self.saves.newest = None
        _copies.setdefault(source, weakref.WeakSet()).add(self)
        known.update(source, weight)
        self.prefetches.note(table, None)

    def check_memory(self, source: StepContainer) -> None:
        """Checks the memory of a model and its copy before the copy changes.

        Args:
            source: the container of the model.

        Raises:
            CapacityError: both exceed the memory budget of the model.
        """
        budget = source.state.memory_bytes
        if budget is None:
            return
        own = sum(map(self.table_bytes, self.tables))
        own += sum(each.memory_bytes for each in self.averages.values())
        others = sum(map(source.table_bytes, source.tables))
        if own + others > budget:
            raise CapacityError(
                f"update of averaged rows: found {others:,} bytes of tables and {own:,} bytes of their "
                f"averages; their budget is {budget:,}. No row was changed. Raise the budget "
                "(StepContainer(memory_bytes=…), in a configuration tables.memory_bytes), or create the "
                "AveragedModel in `with sparring_torch.shared_rows():`, which averages no rows",
                memory_bytes=own + others,
                budget_bytes=budget,
            )

    def bring_up_to_date(self, tables: Iterable[str], ids: object = None) -> None:
        """Computes the current averages of rows.

        Args:
            tables: names of tables.
            ids: the ids that are read next; None or other types mean all rows.
        """
        averages = [self.averages[name] for name in tables if name in self.averages]
        if not averages:
            return
        keys = None
        if self.collective.world_size > 1:
            ids = None  # other ranks read other rows of this rank
        if isinstance(ids, Tensor) and not ids.is_nested and not ids.is_floating_point():
            ids = ids.detach().cpu().numpy()
        if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
            keys = np.unique(ids).astype(np.int64)
        for each in averages:
            each.bring_up_to_date(keys)

    # -- operations that read rows

    def lookup_all(
        self,
        requests: Sequence[tuple[str, Keys]],
        *,
        is_registered: bool = True,
        own_error: Exception | None = None,
    ) -> list[Lookup]:
        """See `StepContainer.lookup_all`."""
        for table, ids in requests if self.averages else ():
            self.bring_up_to_date([table], ids)
        return super().lookup_all(requests, is_registered=is_registered, own_error=own_error)

    def prefetch(
        self, requests: Sequence[tuple[str, Keys]], *, own_error: Exception | None = None
    ) -> Prefetch:
        """See `StepContainer.prefetch`."""
        self.bring_up_to_date(self.averages)
        return super().prefetch(requests, own_error=own_error)

    def storage(self, table: str) -> Storage:
        """See `StepContainer.storage`."""
        self.bring_up_to_date([table])
        return super().storage(table)

    def save(self, *arguments: Any, options: SaveOptions | None = None, **named: Any) -> Any:
        """See `StepContainer.save`."""
        self.bring_up_to_date(self.averages)
        return super().save(*arguments, options=options, **named)


_copies = weakref.WeakKeyDictionary[StepContainer, "weakref.WeakSet[CopyContainer]"]()


def list_averages(container: StepContainer) -> list[CopyContainer]:
    """Returns the containers of the averages of a container's tables."""
    return list(_copies.get(container, ()))


class _SameRanks(IndependentRendezvous):
    """The ranks of another container."""

    def __init__(self, original: StepContainer) -> None:
        membership = original.state.membership
        super().__init__(membership.rank, membership.world_size)
        self._membership, self._map = membership, original.state.shard_map

    def shard_map(self) -> ShardMap:
        return self._map


def drop_state(container: StepContainer, table: str) -> None:
    """Removes the optimizer state of a copied table, because averages have none."""
    if container.tables[table].state_width:
        container.drop_state(table)
