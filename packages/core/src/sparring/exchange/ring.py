"""The ring exchange: keys to their owners and rows back, gradients to their owners.

At hop h, rank r asks rank r+h and serves rank r-h: every hop is a permutation of the ranks, so no
two ranks send to one. Hop 0 is a rank's own shard and touches no wire; in a world of one it is all
there is. Empty hops are ordinary: a rank without keys for a table still takes part in each.

``docs/explanation/ring-exchange.md`` draws it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.closable import Closable
from sparring.collective import Collective
from sparring.errors import ClosedError, PeerFailure
from sparring.exchange.agreeing import Settings, check_headers, digest_of, refuse_together
from sparring.exchange.beside import InlineLane, Lane
from sparring.exchange.buffers import Buffers
from sparring.exchange.counters import ExchangeCounters
from sparring.exchange.device_exchange import DeviceExchange
from sparring.exchange.headers import (
    Header,
    Mailbox,
    Phase,
    exchange_headers,
    exchange_more_counts,
    given_up,
    send_farewell,
    steps_text,
)
from sparring.exchange.link import Link
from sparring.exchange.options import ExchangeOptions, Schedule, WireDtype
from sparring.exchange.pulling import RingPull
from sparring.exchange.pushing import RingPush
from sparring.exchange.record import ChangedKeys, PullRecord
from sparring.exchange.refreshing import Refreshed, refresh, refresh_own
from sparring.exchange.replicating import push_to_replicas
from sparring.exchange.reply import find_rows
from sparring.exchange.requests import OwnedGradients, Pulled, PullRequest, PushRequest
from sparring.exchange.routing import Routed, route
from sparring.exchange.sequential import pull_at_once, push_at_once
from sparring.exchange.tuning import measure_chunk_rows
from sparring.exchange.wire import Codec
from sparring.kernel_set import KernelSet
from sparring.rendezvous import ShardMap
from sparring.storage.contract import Columns, Keys, Rows, Storage
from sparring.table import TableConfig
from sparring.trace import Trace

__all__ = ["RingExchange"]

_GRACE = 0.06
"""How much of a deadline a rank waits longer for another one to say who failed first."""

_FEW_ROWS = 4096
"""Finding or adding up so many takes less time than handing them to another thread may."""


class RingExchange(Closable):
    """Moves rows and gradients between ranks. One thread uses it.

    Args:
        collective: this rank's place in the group.
        shard_map: who owns which partition; the same on all ranks.
        options: schedule, chunks and wire dtypes; the same on all ranks.
        settings: gives what else must be the same on all ranks, compared at each exchange.

    Raises:
        InvalidArgumentError: `collective` has carried another exchange.
    """

    def __init__(
        self,
        collective: Collective,
        shard_map: ShardMap,
        options: ExchangeOptions | None = None,
        *,
        settings: Callable[[], Settings] = dict,
    ) -> None:
        collective.begin_exchange()
        self.options = options or ExchangeOptions()
        self.counters = ExchangeCounters()
        self.step = 0
        """Steps applied so far; errors name it, and ranks compare it."""
        self._collective = collective
        self._owners = shard_map.owners
        self._rank = collective.rank
        self._world_size = collective.world_size
        self._link = Link(collective, self.counters)
        self._mailbox = Mailbox(self._link)
        self._link.on_stall = self._mailbox.look
        self._settings = settings
        self._chunk_rows = self.options.chunk_rows
        self._buffers = Buffers()
        self._threads: ThreadPoolExecutor | None = None
        self._on_devices: dict[str, DeviceExchange] = {}
        self._failure: PeerFailure | None = None
        self._has_ended = False
        self._has_said_farewell = False
        self._known: tuple[Settings, int] | None = None
        self._map_digest = digest_of(self._owners.tolist())

    @property
    def trace(self) -> Trace | None:
        """Where spans go; None: nowhere."""
        return self._link.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._link.trace = trace

    def pull(
        self, storage: Storage | None, table: TableConfig, keys: Keys, columns: Columns
    ) -> Pulled:
        """Rows of one table; see `pull_all`."""
        return self.pull_all([PullRequest(storage, table, keys, columns)])[0]

    def pull_all(
        self,
        requests: Sequence[PullRequest],
        *,
        is_training: bool = True,
        record: PullRecord | None = None,
        error: BaseException | None = None,
    ) -> list[Pulled]:
        """Rows from their owners; all ranks call it for the same tables at the same time.

        Args:
            requests: one for each table, in the same order on all ranks.
            is_training: gradients will come. A rank that only reads has ended its training.
            record: filled with what `refresh_all` needs; None: there will be none.
            error: why this rank cannot take part. Then nobody pulls anything from others.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent, elsewhere, or could not read its rows.
            InvalidArgumentError: ranks were set up differently, or pull other tables.
        """
        is_own = [self._is_own(each.table) for each in requests]
        if any(is_own):
            others = [each for each, own in zip(requests, is_own, strict=True) if not own]
            if not others and error is not None:
                raise error
            pulled = iter(
                self.pull_all(others, is_training=is_training, record=record, error=error)
                if others
                else ()
            )
            return [
                find_rows(each.storage, each.table, each.keys, each.columns)
                if own
                else next(pulled)
                for each, own in zip(requests, is_own, strict=True)
            ]
        names = [f"{each.table.name}[{each.columns.begin}:{each.columns.end}]" for each in requests]
        phase = Phase.LOOKUP if is_training else Phase.READ
        wire_dtype = self.options.row_wire_dtype
        assert isinstance(wire_dtype, WireDtype)
        codecs = [each.codec(wire_dtype) for each in requests]
        with self._guarded("pull", [each.table.name for each in requests]):
            routed = route([each.keys for each in requests], self._owners, self._world_size)
            counts = self._agree(phase, routed.counts, names, error)
            if record is not None:
                record.begin(routed, counts)
            if self.options.schedule is Schedule.SEQUENTIAL:
                return pull_at_once(self._link, requests, codecs, routed, counts, record)
            num_rows = int(counts.sum()) + len(routed.streams[self._rank])
            lane = self._lane([each.storage for each in requests], num_rows)
            return RingPull(
                self._link,
                lane,
                requests,
                codecs,
                routed,
                counts,
                self._rows_of_a_chunk(codecs),
                self.options.chunks_in_flight,
                self._buffers,
                record,
            ).run()

    def refresh_all(
        self,
        requests: Sequence[PullRequest],
        record: PullRecord,
        changed: Sequence[ChangedKeys],
    ) -> list[Refreshed]:
        """Rows pulled before, again: those alone that have changed; all ranks call it together.

        Owners know what has changed, so no key travels again.

        Args:
            requests: those of the pull, with the storages of now.
            record: of the pull.
            changed: of each table, the keys of this rank's shard that have changed since.

        Raises:
            PeerFailure, InvalidArgumentError: as `pull_all`.
        """
        is_own = [self._is_own(each.table) for each in requests]
        if any(is_own):
            pairs = list(zip(requests, changed, strict=True))
            others = [pair for pair, own in zip(pairs, is_own, strict=True) if not own]
            refreshed = iter(
                self.refresh_all([one for one, _ in others], record, [keys for _, keys in others])
                if others
                else ()
            )
            return [
                refresh_own(*pair) if own else next(refreshed)
                for pair, own in zip(pairs, is_own, strict=True)
            ]
        names = [each.table.name for each in requests]
        wire_dtype = self.options.row_wire_dtype
        assert isinstance(wire_dtype, WireDtype)
        with self._guarded("refresh", names):
            stale = record.stale(changed, self._rank)
            coming = self._agree(Phase.REFRESH, stale.counts, names)
            codecs = [each.codec(wire_dtype) for each in requests]
            return refresh(
                self._link, requests, codecs, record, changed=changed, stale=stale, coming=coming
            )

    def push(
        self,
        table: TableConfig,
        keys: Keys,
        gradients: Rows,
        make_accumulator: Callable[[], Any],
    ) -> OwnedGradients:
        """Gradients of one table; see `push_all`."""
        return self.push_all([PushRequest(table, keys, gradients, make_accumulator)])[0]

    def push_all(
        self, requests: Sequence[PushRequest], *, error: BaseException | None = None
    ) -> list[OwnedGradients]:
        """Gradients to their owners, added up by key: this rank's first, then those of the rank
        before it, and so on around the ring.

        Args:
            requests: one for each table, in the same order on all ranks.
            error: why this rank cannot apply the step. Then nobody pushes anything.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent or elsewhere.
            InvalidArgumentError: ranks were set up differently, or push other tables.
        """
        if self._world_size == 1:
            if error is not None:
                raise error
            return [OwnedGradients(each.keys, each.gradients) for each in requests]
        wire_dtype = self.options.gradient_wire_dtype
        assert isinstance(wire_dtype, WireDtype)
        names = [each.table.name for each in requests]
        is_replicated = np.array([each.table.is_replicated for each in requests], np.bool_)
        replicated = [each for each in requests if each.table.is_replicated]
        sharded = [each for each in requests if not each.table.is_replicated]
        with self._guarded("push", names):
            routed = route([each.keys for each in sharded], self._owners, self._world_size)
            counts = np.empty((self._world_size, len(requests)), np.int64)
            counts[:, ~is_replicated] = routed.counts
            counts[:, is_replicated] = [len(each.keys) for each in replicated]
            coming = self._agree(Phase.PUSH, counts, names, error)
            owned = iter(self._push_sharded(sharded, wire_dtype, routed, coming[:, ~is_replicated]))
            everywhere = iter(
                push_to_replicas(
                    self._link,
                    replicated,
                    [each.codec(wire_dtype) for each in replicated],
                    coming[:, is_replicated],
                )
            )
        return [next(everywhere if each.table.is_replicated else owned) for each in requests]

    def _push_sharded(
        self,
        requests: Sequence[PushRequest],
        wire_dtype: WireDtype,
        routed: Routed,
        coming: npt.NDArray[np.int64],
    ) -> list[OwnedGradients]:
        codecs = [each.codec(wire_dtype) for each in requests]
        if self.options.schedule is Schedule.SEQUENTIAL:
            return push_at_once(self._link, requests, codecs, routed, coming)
        num_rows = int(coming.sum()) + len(routed.streams[self._rank])
        return RingPush(
            self._link,
            self._lane([], num_rows),
            self._lane([each.storage for each in requests], num_rows),
            requests,
            codecs,
            routed,
            coming,
            self._rows_of_a_chunk(codecs),
            self.options.chunks_in_flight,
            self._buffers,
        ).run()

    def on_device(self, kernels: KernelSet) -> DeviceExchange:
        """The same for arrays of a device, which stay there. Closed with this one.

        Raises:
            UnsupportedError: the kernels have no streams.
        """
        found = self._on_devices.get(kernels.device)
        if found is None:
            found = self._on_devices[kernels.device] = DeviceExchange(self, kernels)
        return found

    def _is_own(self, table: TableConfig) -> bool:
        """Whether all rows of a table are on this rank."""
        return self._world_size == 1 or table.is_replicated

    def commit(self, num_rows: Sequence[int], error: BaseException | None = None) -> list[int]:
        """Returns when all ranks are ready to write the step; all ranks call it.

        Args:
            num_rows: how many rows of each table this rank will write.
            error: why it cannot.

        Returns:
            How many rows of each table all ranks together will write.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent or elsewhere.
        """
        if self._world_size == 1:
            if error is not None:
                raise error
            return list(num_rows)
        mine = np.tile(np.asarray(num_rows, np.int64), (self._world_size, 1))
        with self._guarded("commit", ()):
            theirs = self._agree(Phase.COMMIT, mine, [], error)
            theirs[self._rank] = num_rows
            totals: list[int] = theirs.sum(axis=0).tolist()
            return totals

    def end(self) -> None:
        """Tells the others that this rank takes part in no further exchange. Waits for nobody."""
        self._has_ended = True
        if self._world_size > 1:
            self._say_farewell()

    def close(self) -> None:
        """Ends, and lets go of the thread. A second call does nothing."""
        self.end()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        while self._on_devices:
            self._on_devices.popitem()[1].close()

    def _agree(
        self,
        phase: Phase,
        counts: npt.NDArray[np.int64],
        requests: Sequence[str],
        error: BaseException | None = None,
    ) -> npt.NDArray[np.int64]:
        """Begins an exchange. Returns ``(world_size, tables)``: the counts of the others."""
        settings, settings_digest = self._all_settings()
        mine = Header(
            phase,
            self.step,
            settings_digest,
            digest_of(list(requests)),
            error is not None,
            counts.shape[1],
        )
        seen = exchange_headers(self._link, self._mailbox, mine, counts)
        check_headers(self._collective, seen.headers, settings, requests)
        refuse_together(self._collective, seen.headers, error)
        return exchange_more_counts(self._link, counts, seen.counts)

    def _all_settings(self) -> tuple[Settings, int]:
        """What all ranks must have alike, and its digest, made again only where it changed."""
        given = self._settings()
        if self._known is None or self._known[0] is not given:
            self._known = given, digest_of({"exchange": self._described(), **given})
        return {"exchange": self._described(), **given}, self._known[1]

    def _described(self) -> dict[str, Any]:
        options = self.options
        return {
            "schedule": Schedule(options.schedule).value,
            "chunk_rows": options.chunk_rows or "auto",
            "row_wire_dtype": WireDtype(options.row_wire_dtype).value,
            "gradient_wire_dtype": WireDtype(options.gradient_wire_dtype).value,
            "world_size": self._world_size,
            "shard_map": self._map_digest,
        }

    def _rows_of_a_chunk(self, codecs: Sequence[Codec]) -> int:
        if self._chunk_rows is None:
            typical = sum(each.row_bytes for each in codecs) // max(1, len(codecs))
            self._chunk_rows = measure_chunk_rows(self._collective, typical)
        return self._chunk_rows

    def _lane(self, storages: Sequence[Storage | None], num_rows: int) -> Lane:
        """Where rows are found: on the pool, unless a storage may wait or needs the GIL, or there
        are so few that it is not worth a thread's while."""
        if all(each is None or each.capabilities.native for each in storages):
            return InlineLane() if num_rows <= _FEW_ROWS else Lane(None)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="sparring-find")
        return Lane(self._threads)

    def _root_of(self, failure: PeerFailure) -> PeerFailure:
        """What the failed rank said as it ended, the failure that a rank told of that gave up
        before, or `failure` itself.

        Deadlines of ranks that wait for each other end at nearly the same time, so that it may take
        a moment until the rank that knows has told.
        """
        failed = failure.details["rank"]
        assert isinstance(failed, int)
        if failure.details.get("is_certain"):
            return failure
        limit = time.monotonic() + min(1.0, _GRACE * self._collective.deadline_seconds)
        while True:
            try:
                self._mailbox.look()
            except PeerFailure as other:
                return other
            farewell = self._mailbox.farewell_of(failed)
            if farewell is not None:
                return given_up(self._collective, failed, farewell)
            if time.monotonic() > limit:
                return failure
            time.sleep(0.001)

    def give_up(self, error: BaseException) -> None:
        """Tells the others that this rank failed where they go on, so that none waits for it."""
        if self._world_size == 1:
            return
        if self._failure is None:
            self._failure = PeerFailure(
                f"rank {self._rank} failed where the others went on ({type(error).__name__}: "
                f"{error}), so there is no further exchange; restart all ranks from the last snapshot",
                rank=self._rank,
                operation=self._collective.context.operation,
                table=self._collective.context.table,
                step=self.step,
                is_certain=True,
            )
        self._say_farewell()

    def _say_farewell(self) -> None:
        if self._has_said_farewell:
            return
        self._has_said_farewell = True
        blamed = self._failure.details["rank"] if self._failure is not None else None
        send_farewell(self._link, self.step, blamed if isinstance(blamed, int) else None)

    @contextmanager
    def _guarded(self, operation: str, tables: Sequence[str]) -> Iterator[None]:
        """Makes failures of peers final, and says what they left behind."""
        if self._has_ended:
            raise ClosedError("this exchange has ended; make another container")
        if self._failure is not None:
            raise PeerFailure(str(self._failure), **self._failure.details)
        self._link.begin(operation, tables[0] if len(tables) == 1 else None, self.step)
        try:
            yield
        except PeerFailure as found:
            failure = self._root_of(found)
            # Rows are written only after the last exchange of a step, so none is half applied.
            details = {
                "operation": operation,
                "table": None,
                "is_certain": False,
                **failure.details,
                "step": self.step,
                "steps_applied": self.step,
            }
            text = f"{failure}. This rank's tables are as {steps_text(self.step)} left them"
            self._failure = PeerFailure(text, **details)
            self._say_farewell()
            raise self._failure from failure
