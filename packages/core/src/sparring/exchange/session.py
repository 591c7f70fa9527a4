"""State that all exchanges of one rank share: step, agreement with other ranks, and failure.

Exchanges of host arrays and of device arrays use the same session, because a collective has one stream
of messages. Each exchange runs inside `guard` and begins with `agree`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.ranks.collective import Collective, WorkContext
from sparring.contracts.ranks.exchange_options import ExchangeOptions, WireDtype
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.tables.table import TableConfig
from sparring.errors import ClosedError, InvalidArgumentError, PeerFailure
from sparring.exchange.headers import (
    Header,
    HeaderInbox,
    Phase,
    Settings,
    check_headers,
    compute_digest,
    exchange_headers,
    exchange_more_counts,
    format_steps,
    make_peer_failure,
    raise_on_all,
    send_shutdown_notice,
)
from sparring.exchange.messages import Codec
from sparring.exchange.messenger import ExchangeCounters, Messenger
from sparring.exchange.two_levels import TwoLevels, choose_levels

__all__ = [
    "ExchangeSession",
    "MIN_CHUNK_ROWS",
    "MAX_CHUNK_ROWS",
    "compute_chunk_rows",
    "measure_chunk_rows",
]

_GRACE = 0.06
"""Additional time, as a share of the deadline, in which another rank may report the root cause."""


class ExchangeSession:
    """One rank's side of all its exchanges. Used by one thread.

    Args:
        collective: connection to the other ranks.
        shard_map: owner of each partition; the same on all ranks.
        options: chunk sizes and wire dtypes; the same on all ranks.
        settings: returns all other settings that must be equal on all ranks, including layouts; ranks
            compare them at each exchange.
        layout_of: returns the layout of a table by its name; if None, all tables use the shard map.

    Raises:
        InvalidArgumentError: `collective` was already used by another exchange, or does not know the
            hosts that the options require.
    """

    def __init__(
        self,
        collective: Collective,
        shard_map: ShardMap,
        options: ExchangeOptions,
        settings: Callable[[], Settings],
        layout_of: Callable[[str], ShardMap] | None,
    ) -> None:
        collective.begin_exchange()
        self.collective = collective
        self.rank = collective.rank
        self.world_size = collective.world_size
        self._shard_map = shard_map
        self._layout_of = layout_of
        self.options = options
        self.counters = ExchangeCounters()
        self.step = 0
        """Number of applied steps; errors contain it, and ranks compare it."""
        self.messenger = Messenger(collective, self.counters)
        self._inbox = HeaderInbox(self.messenger)
        self.messenger.on_stall = self._inbox.poll
        if options.two_levels and self.world_size > 1 and collective.hosts is None:
            raise InvalidArgumentError(
                "exchange.two_levels is true, but the collective does not know which ranks share a host; "
                'set it to auto, or use the collective shm (pip install "sparring[shm]")'
            )
        self.levels: TwoLevels | None = None
        """Routes of messages in two levels, after the first exchange; None: one level."""
        self._has_chosen_levels = False
        self._settings = settings
        self._chunk_rows = options.chunk_rows
        self._known: tuple[Settings, int] | None = None
        self._map_digest = compute_digest(shard_map.owners.tolist())
        self._failure: PeerFailure | None = None
        self._has_ended = False
        self._has_sent_notice = False

    def is_local(self, table: TableConfig) -> bool:
        """Whether all rows of a table are on this rank."""
        return self.world_size == 1 or table.is_replicated

    def owners(self, table: TableConfig) -> npt.NDArray[np.int32]:
        """Returns the rank ``(4096,)`` that owns each partition of a table."""
        found = self._shard_map if self._layout_of is None else self._layout_of(table.name)
        return found.owners

    def chunk_rows(self, codecs: Sequence[Codec]) -> int:
        """Returns the number of rows per message; measured by the first exchange unless set by the
        options."""
        if self._chunk_rows is None:
            typical = sum(each.row_bytes for each in codecs) // max(1, len(codecs))
            self._chunk_rows = measure_chunk_rows(self.collective, typical)
        return self._chunk_rows

    def use_levels(self, levels: TwoLevels | None) -> None:
        """Sets the routes of messages. All ranks must call it between the same exchanges."""
        self.levels = levels
        ranks = self.messenger.later_ranks if levels is None else levels.direct_ranks
        self.messenger.direct_ranks = frozenset(ranks)

    def agree(
        self,
        phase: Phase,
        counts: npt.NDArray[np.int64],
        requests: Sequence[str] | Settings,
        error: BaseException | None = None,
    ) -> npt.NDArray[np.int64]:
        """Begins an exchange: all ranks proceed, or all raise.

        Args:
            phase: operation of this exchange.
            counts: ``(world_size, tables)``: rows that this rank requests from each rank, or sends to
                it.
            requests: descriptions of the tables that this rank exchanges, or settings of the update
                that it applies; must be equal on all ranks.
            error: error of this rank, if it cannot take part.

        Returns:
            ``(world_size, tables)``: the counts of the other ranks for this one.

        Raises:
            BaseException: `error`, or the error of another rank, with that rank's number.
            PeerFailure: a rank is gone, does not respond, or is in another operation.
            InvalidArgumentError: ranks have different settings, exchange different tables, or apply
                different updates.
        """
        settings, settings_digest = self.all_settings()
        mine = Header(
            phase,
            self.step,
            settings_digest,
            compute_digest(requests if isinstance(requests, Mapping) else list(requests)),
            error is not None,
            counts.shape[1],
        )
        seen = exchange_headers(self.messenger, self._inbox, mine, counts, self.levels)
        check_headers(self.collective, seen.headers, settings, requests)
        raise_on_all(self.collective, seen.headers, error)
        theirs = exchange_more_counts(self.messenger, counts, seen.counts, self.levels)
        if not self._has_chosen_levels:
            self._has_chosen_levels = True
            self.use_levels(choose_levels(self.messenger, self.options.two_levels))
        return theirs

    @contextmanager
    def guard(self, operation: str, tables: Sequence[str]) -> Iterator[None]:
        """Context of an exchange. A failure of a peer ends the session, and its error contains the
        state of this rank's tables.

        Args:
            operation: name of the operation, for errors.
            tables: tables of the exchange.

        Raises:
            ClosedError: the session has ended.
            PeerFailure: a rank is gone, does not respond, or is in another operation, in this or an
                earlier exchange.
        """
        if self._has_ended:
            raise ClosedError(f"{operation}: this exchange has ended; create another container")
        if self._failure is not None:
            raise PeerFailure(str(self._failure), **self._failure.details)
        self.messenger.begin(operation, tables[0] if len(tables) == 1 else None, self.step)
        try:
            yield
        except PeerFailure as found:
            failure = self._root_cause(found)
            # Rows are written only after the last exchange of a step, so no step is partially applied.
            details = {
                "operation": operation,
                "table": None,
                "is_certain": False,
                **failure.details,
                "step": self.step,
                "steps_applied": self.step,
            }
            text = f"{failure}. This rank's tables contain {format_steps(self.step)}"
            self._failure = PeerFailure(text, **details)
            self._send_notice()
            raise self._failure from failure

    def give_up(self, error: BaseException) -> None:
        """Notifies the other ranks, which continue, that this rank failed, so that none waits for
        it."""
        if self.world_size == 1:
            return
        if self._failure is None:
            self._failure = PeerFailure(
                f"rank {self.rank} failed while the others continued ({type(error).__name__}: "
                f"{error}), so no further exchange is possible; restart all ranks from the last snapshot",
                rank=self.rank,
                operation=self.collective.context.operation,
                table=self.collective.context.table,
                step=self.step,
                is_certain=True,
            )
        self._send_notice()

    def end(self) -> None:
        """Notifies the other ranks that this rank takes part in no further exchange, without
        waiting."""
        self._has_ended = True
        if self.world_size > 1:
            self._send_notice()

    def all_settings(self) -> tuple[Settings, int]:
        """Returns the settings that all ranks must share, and their digest, which is cached until they
        change."""
        given = self._settings()
        if self._known is None or self._known[0] is not given:
            self._known = given, compute_digest({"exchange": self._describe(), **given})
        return {"exchange": self._describe(), **given}, self._known[1]

    def _describe(self) -> dict[str, Any]:
        options = self.options
        return {
            "chunk_rows": options.chunk_rows or "auto",
            "row_wire_dtype": WireDtype(options.row_wire_dtype).value,
            "gradient_wire_dtype": WireDtype(options.gradient_wire_dtype).value,
            "two_levels": "auto" if options.two_levels is None else options.two_levels,
            "world_size": self.world_size,
            "shard_map": self._map_digest,
        }

    def _root_cause(self, failure: PeerFailure) -> PeerFailure:
        """Returns the failure that a shutdown notice reports, or `failure` if there is no notice.

        The notice is from the failed rank, or from a rank that names the rank that failed first.

        Ranks that wait for each other reach their deadlines at nearly the same time, so the notice with
        the cause may arrive a moment later.
        """
        failed = failure.details["rank"]
        assert isinstance(failed, int)
        if failure.details.get("is_certain"):
            return failure
        limit = time.monotonic() + min(1.0, _GRACE * self.collective.deadline_seconds)
        while True:
            try:
                self._inbox.poll()
            except PeerFailure as other:
                return other
            notice = self._inbox.find_shutdown_notice(failed)
            if notice is not None:
                return make_peer_failure(self.collective, failed, notice)
            if time.monotonic() > limit:
                return failure
            time.sleep(0.001)

    def _send_notice(self) -> None:
        if self._has_sent_notice:
            return
        self._has_sent_notice = True
        culprit: int | None = None
        if self._failure is not None:
            rank = self._failure.details["rank"]
            assert isinstance(rank, int)
            culprit = rank
            # For ranks that are inside a collective operation, where they do not poll for headers.
            self.collective.give_up(culprit)
        send_shutdown_notice(self.messenger, self.step, culprit)


MIN_CHUNK_ROWS, MAX_CHUNK_ROWS = 1024, 65_536

_SMALL, _LARGE = 4 << 10, 1 << 20
_REPEATS = 5
_TAG = 17

_OVERHEAD_SHARE = 0.05
"""Maximum share of the fixed cost in a message's time."""

_BUDGET_SECONDS = 0.5
"""No repeat starts after this time, because a slow network is visible in the first one."""


def measure_chunk_rows(collective: Collective, row_bytes: int) -> int:
    """Measures messages around the ring and chooses the number of rows per message. All ranks must call
    it.

    It takes some milliseconds, on a slow network at most about a second.

    Args:
        collective: connection to the other ranks.
        row_bytes: bytes of a typical row on the wire.
    """
    collective.context = WorkContext("tuning")
    small = _seconds(collective, _SMALL)
    large = _seconds(collective, _LARGE)
    mine = np.array([small, large], np.float64)
    # All ranks use the same numbers, and so make the same choice.
    slowest = np.max(collective.all_gather(mine), axis=0)
    return compute_chunk_rows(float(slowest[0]), float(slowest[1]), row_bytes)


def compute_chunk_rows(small_seconds: float, large_seconds: float, row_bytes: int) -> int:
    """Computes the number of rows per message, a power of two, from the times of messages of 4 KiB and
    1 MiB.

    A message takes ``fixed + bytes * per_byte`` seconds; both parameters follow from the two times. The
    chosen size makes the fixed part a twentieth of the time. A larger message would delay the overlap,
    which begins only when the first chunk is found.
    """
    per_byte = max((large_seconds - small_seconds) / (_LARGE - _SMALL), 1e-12)
    fixed = max(small_seconds - _SMALL * per_byte, 1e-7)
    rows = fixed / per_byte / _OVERHEAD_SHARE / max(1, row_bytes)
    exponent = round(np.log2(min(max(rows, MIN_CHUNK_ROWS), MAX_CHUNK_ROWS)))
    return int(2**exponent)


def _seconds(collective: Collective, num_bytes: int) -> float:
    """Returns the minimum time to send a message to the next rank, over some repeats."""
    rank, world_size = collective.rank, collective.world_size
    outgoing, incoming = np.zeros(num_bytes, np.uint8), np.empty(num_bytes, np.uint8)
    times = []
    begin = time.perf_counter()
    for _ in range(_REPEATS):
        start = time.perf_counter()
        coming = collective.receive(incoming, (rank - 1) % world_size, _TAG)
        going = collective.send(outgoing, (rank + 1) % world_size, _TAG)
        coming.wait()
        going.wait()
        times.append(time.perf_counter() - start)
        # All ranks must stop at the same repeat, so the slowest one determines it.
        passed = np.array([time.perf_counter() - begin])
        if float(np.max(collective.all_gather(passed))) > _BUDGET_SECONDS:
            break
    return min(times)
