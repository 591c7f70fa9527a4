"""Owner pooling: owners return a partial pool per bag instead of its rows, and receive gradients of
bags.

    pull      ids, lengths of bags ──► dedup, find, pool ──► partial pools ──► summed by the requester
    push      gradients of these bags ──► expanded to keys by the owner ──► summed by key
    backward  gradients of these bags ──► one number per id: the gradients of trained weights

An owner stores the keys of the bags that it pooled in training. It drops them when the requester
reports, in its next lookup, that no gradient will arrive, and at the end of the step. Therefore nothing
must be undone if a step is rejected or aborted.

All ranks make the same lookups in the same order and number them, so a gradient refers to its lookup by
that number. ``docs/decisions/owner-pooling.md`` explains the design.
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
    """Pulls pools of bags from their owners, and pushes gradients to them. Used by one thread.

    Args:
        session: session of the exchange.
        executor: creates the executor of finds and sums, given the storages and the bytes of the rows.
        buffers: buffers of messages.
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
        """Number of the next lookup in training."""
        self.logged_tables: set[str] = set()
        """Tables for which a lookup of rows was logged."""
        self.has_lookups = False
        """Whether there was a lookup since `forget`; the same on all ranks."""

    @property
    def num_kept(self) -> int:
        """Number of lookups of all ranks whose keys this rank stores."""
        return sum(map(len, self._kept))

    def forget(self) -> None:
        """Drops all stored lookups at the end of a step. All ranks must call it at the same time."""
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
        """Pulls one pool per bag. All ranks must call it for the same tables at the same time.

        Args:
            requests: one request per table and kind of pooling, in the same order on all ranks.
            is_training: whether a backward pass follows.
            first_alive: number of the first lookup that may still get a gradient from this rank; None
                if there is no such lookup.
            error: error of this rank, if it cannot take part. Then no rank does.

        Raises:
            BaseException: `error`, or the error of another rank, with that rank's number.
            PeerFailure: a rank is gone, does not respond, is in another operation, or could not read
                its rows.
            InvalidArgumentError: ranks have different settings, or pool different tables.
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
        """Pushes gradients of bags to the owners of their rows. All ranks must call it.

        Args:
            tables: all tables of which bags may have been pooled, in the same order on all ranks.
            given: gradients ``(bags, dim)`` of this rank; gradients of means are not divided yet.
            add: processes gradients on the executor: those of this rank first, then those of the
                previous rank, and so on around the ring.
            error: error of this rank, if it cannot apply the step. Then no rank pushes.

        Returns:
            Error of this rank while it processed gradients, which was not reported to the other ranks.

        Raises:
            BaseException: `error`, or the error of another rank, with that rank's number.
            PeerFailure: a rank is gone, does not respond, or is in another operation.
            InvalidArgumentError: ranks have different settings.
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
        """Returns the gradients ``(ids,)`` of the weights of one `pull`. All ranks must call it.

        Args:
            requested: all bags of a pull whose requests train weights.
            gradients: gradient ``(bags, dim)`` of each; None if there is none. The gradients of its
                weights are then zeros.

        Raises:
            PeerFailure: a rank is gone, does not respond, is in another operation, or failed.
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
    if not request.trains_weights:  # positions are needed only for gradients of weights
        nothing = np.empty(0, np.int64)
        parts = [OwnerBags(nothing, each.bags, each.lengths) for each in parts]
    return RequestedBags(number, request.table, parts, request.num_bags, shares, len(request.ids))
