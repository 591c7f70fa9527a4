"""Owner pooling: owners return one partial pool a bag in place of its rows, and take gradients of bags.

    pull      ids, lengths of bags ──► dedup, find, pool ──► partial pools ──► added up by the asker
    push      gradients of these bags ──► expanded to keys by what the owner kept ──► added up by key
    backward  gradients of these bags ──► one number an id: the gradients of trained weights

An owner keeps the keys of the bags that it pooled in training. It drops those of a rank as soon as that
rank says, at its next lookup, that no gradient will come, and all of them when a step is over. So
where a step is refused or given up, nothing need be undone.

All ranks make the same lookups in the same order, so they number them alike: a gradient names its
lookup by that number. ``docs/decisions/owner-pooling.md`` says why it is done so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Rows
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.exchange.bag_rounds import (
    AddBags,
    Gradients,
    PullRound,
    PushRound,
    SharedParts,
    WeightRound,
    scale_gradient,
)
from sparring.exchange.bags import (
    BagRequest,
    OwnerBags,
    PooledBags,
    RequestedBags,
    ServedBags,
    compute_lengths,
    split_by_owner,
)
from sparring.exchange.headers import Phase
from sparring.exchange.messenger import Buffers
from sparring.exchange.session import ExchangeSession
from sparring.runtime.threads import SerialExecutor

__all__ = ["AddBags", "Gradients", "OwnerPooling"]


class OwnerPooling:
    """Pools of bags from their owners, and gradients back. One thread uses it.

    Args:
        session: of the exchange.
        executor: makes what runs finds and sums, for storages and a number of rows.
        buffers: memory for messages.
    """

    def __init__(
        self,
        session: ExchangeSession,
        executor: Callable[[Sequence[Storage | None], int], SerialExecutor],
        buffers: Buffers,
    ) -> None:
        self._session = session
        self._kept: list[dict[int, ServedBags]] = [{} for _ in range(session.world_size)]
        self._shared = SharedParts(session, executor, buffers, self._kept)
        self.next_number = 0
        """Of the next lookup in training."""
        self.logged_tables: set[str] = set()
        """Tables of which it was logged that rows are looked up."""
        self.has_lookups = False
        """Whether there was one since `forget`; the same on all ranks."""

    @property
    def num_kept(self) -> int:
        """Lookups of all ranks whose keys this rank keeps."""
        return sum(map(len, self._kept))

    def forget(self) -> None:
        """Drops what was kept: the step is over. All ranks call it at the same time."""
        self.has_lookups = False
        for kept in self._kept:
            kept.clear()

    def pull(
        self,
        requests: Sequence[BagRequest],
        *,
        is_training: bool,
        first_alive: int | None = None,
        error: BaseException | None = None,
    ) -> list[PooledBags]:
        """One pool for each bag; all ranks call it for the same tables at the same time.

        Args:
            requests: one for each table and kind of pooling, in the same order on all ranks.
            is_training: gradients will come.
            first_alive: the first lookup that may still get a gradient of this rank; None: none may.
            error: why this rank cannot take part. Then no rank does.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent, elsewhere, or could not read its rows.
            InvalidArgumentError: ranks were set up differently, or pool other tables.
        """
        session, count = self._session, len(requests)
        parts: list[list[OwnerBags]] = []
        if error is None:
            try:
                parts = [
                    split_by_owner(each, session.owners(each.table), session.world_size)
                    for each in requests
                ]
            except Exception as found:
                error = found
        mine = np.zeros((session.world_size, 2 * count + 1), np.int64)
        for table, by_owner in enumerate(parts):
            mine[:, table] = [len(each.positions) for each in by_owner]
            mine[:, count + table] = [len(each.bags) for each in by_owner]
        mine[:, -1] = self.next_number if first_alive is None else first_alive
        phase = Phase.LOOKUP if is_training else Phase.READ
        with session.guard("pull", [each.table.name for each in requests]):
            coming = session.agree(phase, mine, list(map(_describe, requests)), error)
            coming[session.rank] = mine[session.rank]
            for kept, alive in zip(self._kept, coming[:, -1].tolist(), strict=True):
                for number in [each for each in kept if each < alive]:
                    del kept[number]
            first = self.next_number if is_training else None
            if is_training:
                self.next_number += count
                self.has_lookups = True
            pools = PullRound(self._shared, requests, parts, coming, first).run(mine)
        return [
            PooledBags(
                out,
                None
                if first is None
                else _make_requested_bags(first + position, request, by_owner),
            )
            for position, (out, request, by_owner) in enumerate(
                zip(pools, requests, parts, strict=True)
            )
        ]

    def push(
        self,
        tables: Sequence[TableConfig],
        given: Sequence[tuple[RequestedBags, Rows]],
        add: AddBags,
        error: BaseException | None = None,
    ) -> BaseException | None:
        """Gradients of bags to the owners of their rows; all ranks call it.

        Args:
            tables: all that owners may have pooled bags of, in the same order on all ranks.
            given: the gradients ``(bags, dim)`` of this rank, those of means not yet divided.
            add: takes what comes, on the executor: that of this rank first, then that of the rank
                before it, and so on around the ring.
            error: why this rank cannot apply the step. Then no rank pushes.

        Returns:
            Why this rank cannot take what came, too late to tell the other ranks here.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent or elsewhere.
            InvalidArgumentError: ranks were set up differently.
        """
        session = self._session
        by_table: dict[str, list[tuple[RequestedBags, Rows]]] = {each.name: [] for each in tables}
        for requested, gradient in sorted(given, key=lambda each: each[0].number):
            by_table[requested.table.name].append((requested, scale_gradient(requested, gradient)))
        mine = np.zeros((session.world_size, 2 * len(tables)), np.int64)
        for position, table in enumerate(tables):
            for owner in range(session.world_size):
                sizes = [len(requested.parts[owner].bags) for requested, _ in by_table[table.name]]
                mine[owner, position] = sum(sizes)
                mine[owner, len(tables) + position] = np.count_nonzero(sizes)
        names = [f"{each.name}, pooled by owners" for each in tables]
        with session.guard("push", [each.name for each in tables]):
            coming = session.agree(Phase.PUSH, mine, names, error)
            return PushRound(self._shared, tables, list(by_table.values()), coming, add).run(mine)

    def weight_gradients(
        self, requested: Sequence[RequestedBags], gradients: Sequence[Rows | None]
    ) -> list[npt.NDArray[Any]]:
        """Gradients ``(ids,)`` of the weights of each request of one `pull`; all ranks call it.

        Args:
            asked: all of a pull whose requests train weights.
            gradients: of each ``(bags, dim)``; None: none came, and those of its weights are zeros.

        Raises:
            PeerFailure: a rank is gone, silent, elsewhere, or failed.
        """
        session = self._session
        mine = np.zeros((session.world_size, len(requested)), np.int64)
        for position, (each, gradient) in enumerate(zip(requested, gradients, strict=True)):
            if gradient is not None:
                mine[:, position] = [len(part.bags) for part in each.parts]
        names = [f"{each.table.name}, gradients of weights" for each in requested]
        with session.guard("backward", [each.table.name for each in requested]):
            coming = session.agree(Phase.BACKWARD, mine, names)
            return WeightRound(self._shared, requested, gradients, coming).run(mine)


def _describe(request: BagRequest) -> str:
    weights = "" if request.weights is None else ", weighted"
    trained = ", weights are trained" if request.trains_weights else ""
    return f"{request.table.name}, pooled by owners{weights}{trained}"


def _make_requested_bags(
    number: int, request: BagRequest, parts: Sequence[OwnerBags]
) -> RequestedBags:
    shares = None
    if request.is_mean:
        shares = np.ones(1, request.table.computing_dtype) / compute_lengths(request)
    if not request.trains_weights:  # places of ids are for gradients of weights only
        nothing = np.empty(0, np.int64)
        parts = [OwnerBags(nothing, each.bags, each.lengths) for each in parts]
    return RequestedBags(number, request.table, parts, request.num_bags, shares, len(request.ids))
