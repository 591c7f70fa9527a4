"""The ring exchange: keys to their owners and rows back, gradients to their owners.

At hop h, rank r asks rank r+h and serves rank r-h: every hop is a permutation of the ranks, so no
two ranks send to one. Hop 0 is a rank's own shard and touches no wire; in a world of one it is all
there is. Empty hops are ordinary: a rank without keys for a table still takes part in each.

Arrays are those of the kernels of a call: NumPy's, or a device's, which stay there. Routing, agreement
and failures are the same for both; what differs is who finds and adds (`RingPull` and `RingPush` on an
executor, `DevicePull` and `DevicePush` on streams), as a decision record explains
(``docs/decisions/one-path.md``).

``docs/explanation/ring-exchange.md`` draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import DeviceArray
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions, WireDtype
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.results import Columns, Keys, Rows
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.errors import (
    DeviceError,
    InvalidArgumentError,
    PeerFailure,
    SparringError,
    UnsupportedError,
)
from sparring.exchange.device_pull import DevicePull
from sparring.exchange.device_push import DevicePush
from sparring.exchange.device_stager import DeviceStager
from sparring.exchange.headers import Phase, Settings
from sparring.exchange.messages import (
    Codec,
    OwnedGradients,
    PullRequest,
    PullResult,
    PushRequest,
    find_rows,
)
from sparring.exchange.messenger import Buffers
from sparring.exchange.pooled import OwnerPooling
from sparring.exchange.pull import RingPull
from sparring.exchange.push import RingPush, push_to_replicas
from sparring.exchange.refresh import ChangedKeys, PullRecord, RefreshResult, refresh, refresh_own
from sparring.exchange.routing import Counts, RoutedKeys, route
from sparring.exchange.session import ExchangeSession
from sparring.kernels.cpu import HOST
from sparring.runtime.lifecycle import Closable
from sparring.runtime.threads import InlineExecutor, SerialExecutor, Threads
from sparring.runtime.trace import Trace

__all__ = ["RingExchange"]

_MAX_INLINE_ROWS = 4096
"""Finding or adding up so many rows takes less time than handing them to another thread."""


class _RoutingResult(NamedTuple):
    """Keys by owner; or nothing, and why."""

    routed: RoutedKeys
    counts: Counts
    error: BaseException | None


class RingExchange(Closable):
    """Moves rows and gradients between ranks. One thread uses it.

    Args:
        collective: this rank's place in the group.
        shard_map: the owner of each partition; the same on all ranks.
        options: chunks and wire dtypes; the same on all ranks.
        settings: returns everything else that must be the same on all ranks; compared at each
            exchange.
        layout_of: table → its layout, by name; `settings` has them. None: all tables are by the
            shard map.

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
        layout_of: Callable[[str], ShardMap] | None = None,
    ) -> None:
        self.session = ExchangeSession(
            collective, shard_map, options or ExchangeOptions(), settings, layout_of
        )
        self.options = self.session.options
        self.counters = self.session.counters
        self._rank = collective.rank
        self._world_size = collective.world_size
        self._buffers = Buffers()
        self._find_thread = Threads("sparring-find")
        self._add_thread = Threads("sparring-device")
        self._stagers: dict[str, DeviceStager] = {}
        self.pooling = OwnerPooling(self.session, self._executor, self._buffers)
        """Of tables whose owners pool."""

    @property
    def trace(self) -> Trace | None:
        """Receives spans; None: nothing is traced."""
        return self.session.messenger.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.session.messenger.trace = trace

    def pull(
        self, storage: Storage | None, table: TableConfig, keys: Keys, columns: Columns
    ) -> PullResult:
        """Rows of one table; see `pull_all`."""
        return self.pull_all([PullRequest(storage, table, keys, columns)])[0]

    def pull_all(
        self,
        requests: Sequence[PullRequest],
        *,
        kernels: KernelSet = HOST,
        is_training: bool = True,
        record: PullRecord | None = None,
        error: BaseException | None = None,
    ) -> list[PullResult]:
        """Rows from their owners; all ranks call it for the same tables at the same time.

        Args:
            requests: one for each table, in the same order on all ranks.
            kernels: of the device that holds keys and tables, on all ranks; rows stay there.
            is_training: gradients will come. A rank that only reads has ended its training.
            record: filled with the state that `refresh_all` needs; None: no refresh will follow, as
                of rows on a device.
            error: why this rank cannot take part. Then no rank pulls rows from others.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent, elsewhere, or could not read its rows.
            InvalidArgumentError: ranks were set up differently, or pull other tables.
            DeviceError, DeadlineError: the device failed; other ranks are told.
        """
        tables = [each.table for each in requests]
        is_own = list(map(self.session.is_local, tables))
        if any(is_own):
            others = [each for each, own in zip(requests, is_own, strict=True) if not own]
            if not others and error is not None:
                raise error
            pulled = iter(
                self.pull_all(
                    others, kernels=kernels, is_training=is_training, record=record, error=error
                )
                if others
                else ()
            )
            with self.report_failure(kernels, [each.table for each in others]):
                return [
                    self._find_own(each, kernels) if own else next(pulled)
                    for each, own in zip(requests, is_own, strict=True)
                ]
        codecs = self._codecs(requests, kernels, self.options.row_wire_dtype, "row_wire_dtype")
        names = [
            _describe_table(f"{each.table.name}[{each.columns.begin}:{each.columns.end}]", kernels)
            for each in requests
        ]
        phase = Phase.LOOKUP if is_training else Phase.READ
        with self.session.guard("pull", [each.name for each in tables]):
            mine = self._route(kernels, requests, error)
            counts = self.session.agree(phase, mine.counts, names, mine.error)
            if record is not None:
                record.begin(mine.routed, counts)
            return self._pull_sharded(requests, codecs, mine.routed, counts, record, kernels)

    def _pull_sharded(
        self,
        requests: Sequence[PullRequest],
        codecs: Sequence[Codec],
        routed: RoutedKeys,
        served_counts: Counts,
        record: PullRecord | None,
        kernels: KernelSet,
    ) -> list[PullResult]:
        chunk_rows, in_flight = self.session.chunk_rows(codecs), self.options.chunks_in_flight
        if kernels is not HOST:
            stager = self.stager(kernels)
            pull = DevicePull(stager, requests, routed, served_counts, chunk_rows, in_flight)
            with self._report_own_failure(pull):
                return pull.run()
        num_rows = int(served_counts.sum()) + len(routed.streams[self._rank])
        return RingPull(
            self.session.messenger,
            self._executor([each.storage for each in requests], num_rows),
            requests,
            codecs,
            routed,
            served_counts,
            chunk_rows,
            in_flight,
            self._buffers,
            record,
        ).run()

    def refresh_all(
        self,
        requests: Sequence[PullRequest],
        record: PullRecord,
        changed: Sequence[ChangedKeys],
    ) -> list[RefreshResult]:
        """Refreshes rows of a pull: only those that have changed; all ranks call it together.

        Owners know which keys have changed, so no key travels again.

        Args:
            requests: those of the pull, with the current storages.
            record: of the pull.
            changed: of each table, the keys of this rank's shard that have changed since.

        Raises:
            PeerFailure, InvalidArgumentError: as `pull_all`.
        """
        is_own = [self.session.is_local(each.table) for each in requests]
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
        with self.session.guard("refresh", names):
            stale = record.stale(changed, self._rank)
            coming = self.session.agree(Phase.REFRESH, stale.counts, names)
            codecs = [each.codec(wire_dtype) for each in requests]
            return refresh(
                self.session.messenger,
                requests,
                codecs,
                record,
                changed=changed,
                stale=stale,
                coming=coming,
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
        self,
        requests: Sequence[PushRequest],
        *,
        kernels: KernelSet = HOST,
        error: BaseException | None = None,
    ) -> list[OwnedGradients]:
        """Gradients to their owners, added up by key: this rank's first, then those of the rank
        before it, and so on around the ring.

        Args:
            requests: one for each table, in the same order on all ranks.
            kernels: of the device that holds keys and gradients, on all ranks; sums stay there.
            error: why this rank cannot apply the step. Then no rank pushes.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent or elsewhere.
            InvalidArgumentError: ranks were set up differently, or push other tables.
            UnsupportedError: a table is replicated, and its gradients are on a device.
            DeviceError, DeadlineError: the device failed before messages were through; other ranks
                are told. A later failure is the `error` of the results.
        """
        if self._world_size == 1:
            if error is not None:
                raise error
            return [OwnedGradients(each.keys, each.gradients, kernels) for each in requests]
        is_replicated = np.array([each.table.is_replicated for each in requests], np.bool_)
        replicated = [each for each in requests if each.table.is_replicated]
        sharded = [each for each in requests if not each.table.is_replicated]
        if replicated and kernels is not HOST:
            raise UnsupportedError(
                f"table {replicated[0].table.name!r} is replicated: its gradients go to all ranks "
                "through host memory; push them as arrays of NumPy"
            )
        wire_dtype, option = self.options.gradient_wire_dtype, "gradient_wire_dtype"
        codecs = self._codecs(sharded, kernels, wire_dtype, option)
        names = [_describe_table(each.table.name, kernels) for each in requests]
        with self.session.guard("push", [each.table.name for each in requests]):
            mine = self._route(kernels, sharded, error)
            counts = np.empty((self._world_size, len(requests)), np.int64)
            counts[:, ~is_replicated] = mine.counts
            counts[:, is_replicated] = [len(each.keys) for each in replicated]
            coming = self.session.agree(Phase.PUSH, counts, names, mine.error)
            sums = self._push_sharded(
                sharded, codecs, mine.routed, coming[:, ~is_replicated], kernels
            )
            owned = iter(sums)
            everywhere = iter(
                push_to_replicas(
                    self.session.messenger,
                    replicated,
                    self._codecs(replicated, kernels, wire_dtype, option),
                    coming[:, is_replicated],
                )
                if replicated
                else sums[:0]
            )
        return [next(everywhere if each.table.is_replicated else owned) for each in requests]

    def _push_sharded(
        self,
        requests: Sequence[PushRequest],
        codecs: Sequence[Codec],
        routed: RoutedKeys,
        coming: Counts,
        kernels: KernelSet,
    ) -> list[OwnedGradients]:
        chunk_rows, in_flight = self.session.chunk_rows(codecs), self.options.chunks_in_flight
        if kernels is not HOST:
            executor = SerialExecutor(self._add_thread)
            stager = self.stager(kernels)
            push = DevicePush(stager, executor, requests, routed, coming, chunk_rows, in_flight)
            with self._report_own_failure():
                return push.run()
        num_rows = int(coming.sum()) + len(routed.streams[self._rank])
        return RingPush(
            self.session.messenger,
            self._executor([], num_rows),
            self._executor([each.storage for each in requests], num_rows),
            requests,
            codecs,
            routed,
            coming,
            chunk_rows,
            in_flight,
            self._buffers,
        ).run()

    def stager(self, kernels: KernelSet) -> DeviceStager:
        """The streams and messages of a device; made once, and closed with this exchange.

        Raises:
            UnsupportedError: the kernels have no streams.
        """
        found = self._stagers.get(kernels.device)
        if found is None:
            found = DeviceStager(kernels, self.session.messenger)
            self._stagers[kernels.device] = found
        return found

    def _codecs(
        self,
        requests: Sequence[PullRequest] | Sequence[PushRequest],
        kernels: KernelSet,
        wire_dtype: WireDtype | str,
        option: str,
    ) -> list[Codec]:
        assert isinstance(wire_dtype, WireDtype)
        if kernels is not HOST and wire_dtype is not WireDtype.EXACT:
            raise InvalidArgumentError(
                f"{option} must be exact for tables on a device, found {wire_dtype.value}: "
                "numbers are narrowed on the CPU only; leave the option out, or keep the tables there"
            )
        return [each.codec(wire_dtype) for each in requests]

    def _route(
        self,
        kernels: KernelSet,
        requests: Sequence[PullRequest] | Sequence[PushRequest],
        error: BaseException | None,
    ) -> _RoutingResult:
        """Routes keys, before an exchange begins. An error is for all ranks to raise."""
        if error is None:
            try:
                owners: list[DeviceArray] = [self.session.owners(each.table) for each in requests]
                if kernels is not HOST:
                    owners = [self.stager(kernels).owners(each) for each in owners]
                keys = [each.keys for each in requests]
                routed = route(kernels, keys, owners, self._world_size)
                return _RoutingResult(routed, routed.counts, None)
            except SparringError as found:
                error = found
            except Exception as found:
                # As one of ours, all ranks raise it and may go on.
                error = DeviceError(
                    f"keys could not be routed on {kernels.device}: {type(found).__name__}: {found}. "
                    "Nothing was exchanged, and no row has changed"
                )
                error.__cause__ = found
        nothing = RoutedKeys([], [], [], self._world_size)
        return _RoutingResult(nothing, np.zeros((self._world_size, len(requests)), np.int64), error)

    def _find_own(self, request: PullRequest, kernels: KernelSet) -> PullResult:
        """Finds rows of a table that this rank holds whole."""
        storage, keys = request.storage, request.keys
        if kernels is HOST:
            return find_rows(storage, request.table, keys, request.columns)
        rows = kernels.arrays.empty((len(keys), request.width), request.table.dtype)
        found = kernels.arrays.empty((len(keys),), "uint8")
        if storage is None:
            rows[...] = 0
            found[...] = 0
        elif len(keys):
            storage._check_open()
            kernels.find_into(storage, keys, rows, found)
        return PullResult(rows, found)

    @contextmanager
    def report_failure(self, kernels: KernelSet, tables: Sequence[TableConfig]) -> Iterator[None]:
        """Tells the other ranks if the block fails, which works on rows of a device that were pulled
        from them: they go on, and would wait for this rank at the next exchange."""
        try:
            yield
        except Exception as error:
            if kernels is not HOST and not all(map(self.session.is_local, tables)):
                self.session.give_up(error)
            raise

    @contextmanager
    def _report_own_failure(self, pull: DevicePull | None = None) -> Iterator[None]:
        """Tells the other ranks if the block fails, unless they know."""
        try:
            yield
        except PeerFailure:
            raise  # `guard` tells them
        except BaseException as error:
            if pull is None or not pull.was_reported:
                self.session.give_up(error)
            raise

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
        with self.session.guard("commit", ()):
            theirs = self.session.agree(Phase.COMMIT, mine, [], error)
            theirs[self._rank] = num_rows
            totals: list[int] = theirs.sum(axis=0).tolist()
            return totals

    def give_up(self, error: BaseException) -> None:
        """Tells the other ranks, which go on, that this rank failed, so that none waits for it."""
        self.session.give_up(error)

    def end(self) -> None:
        """Tells the other ranks that this rank takes part in no further exchange. Does not wait."""
        self.session.end()

    def close(self) -> None:
        """Ends, and joins the thread. A second call does nothing."""
        self.end()
        self._find_thread.close()
        self._add_thread.close()
        while self._stagers:
            self._stagers.popitem()[1].close()

    def _executor(self, storages: Sequence[Storage | None], num_rows: int) -> SerialExecutor:
        """Runs finds on the pool, unless a storage may wait or needs the GIL, or the rows are too few
        to be worth another thread."""
        if all(each is None or each.capabilities.native for each in storages):
            return InlineExecutor() if num_rows <= _MAX_INLINE_ROWS else SerialExecutor(None)
        return SerialExecutor(self._find_thread)


def _describe_table(table: str, kernels: KernelSet) -> str:
    """Text that ranks compare: all of them must hold a table on the same kind of place."""
    return table if kernels is HOST else f"{table} on a device"
