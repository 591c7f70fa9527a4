"""The ring exchange: sends keys to their owners and rows back, and gradients to their owners.

At hop h, rank r sends requests to rank r+h and serves rank r-h. Therefore no two ranks send
requests to the same rank at the same hop. Hop 0 is a rank's own shard and needs no messages; with
one rank, it is the only hop. Hops may be empty: a rank without keys for a table still takes part in
each hop.

Arrays belong to the kernels of a call: NumPy arrays, or arrays that stay on a device. Routing,
agreement and failures are the same for both. Rows are found and gradients summed by `RingPull` and
`RingPush` on an executor, or by `DevicePull` and `DevicePush` on streams;
``docs/decisions/one-path.md`` explains why.

``docs/explanation/ring-exchange.md`` contains diagrams. The file is long because pull and push share
routing, agreement and the reporting of failures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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
from sparring.exchange.headers import NUM_LEVEL_COUNTS, Phase, Settings
from sparring.exchange.messages import (
    KEY_BYTES,
    Codec,
    OwnedGradients,
    PullRequest,
    PullResult,
    PushRequest,
    compute_memory_bytes,
    find_rows,
)
from sparring.exchange.messenger import Buffers
from sparring.exchange.pooled import OwnerPooling
from sparring.exchange.pull import RingPull
from sparring.exchange.push import RingPush, push_to_replicas
from sparring.exchange.refresh import ChangedKeys, PullRecord, RefreshResult, refresh, refresh_own
from sparring.exchange.routing import Counts, RoutedKeys, route
from sparring.exchange.session import ExchangeSession
from sparring.exchange.two_level_ring import TwoLevelPull, TwoLevelPush, stream_bytes
from sparring.exchange.two_levels import TwoLevels
from sparring.kernels.cpu import HOST
from sparring.runtime.lifecycle import Closable
from sparring.runtime.threads import InlineExecutor, SerialExecutor, Threads
from sparring.runtime.trace import Trace

__all__ = ["RingExchange"]

_MAX_INLINE_BYTES = 2 << 20
"""Bytes of rows up to which finding or summing takes less time than passing them to other threads and
polling for their results."""


class _RoutingResult(NamedTuple):
    """Keys grouped by owner; or no keys and an error."""

    routed: RoutedKeys
    counts: Counts
    error: BaseException | None


class RingExchange(Closable):
    """Transfers rows and gradients between ranks. Used by one thread.

    Args:
        collective: connection to the other ranks.
        shard_map: owner of each partition; the same on all ranks.
        options: chunk sizes and wire dtypes; the same on all ranks.
        settings: returns all other settings that must be equal on all ranks, including layouts; ranks
            compare them at each exchange.
        layout_of: returns the layout of a table by its name; None: all tables use the shard map.

    Raises:
        InvalidArgumentError: `collective` was already used by another exchange.
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
        """Exchange of tables whose bags are pooled by the owners of their rows."""

    @property
    def trace(self) -> Trace | None:
        """Trace that records spans; None: tracing is off."""
        return self.session.messenger.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.session.messenger.trace = trace

    def pull(
        self, storage: Storage | None, table: TableConfig, keys: Keys, columns: Columns
    ) -> PullResult:
        """Returns rows of one table; see `pull_all`."""
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
        """Pulls rows from their owners. All ranks must call it for the same tables at the same time.

        Args:
            requests: one request per table, in the same order on all ranks.
            kernels: kernels of the device of keys and tables, on all ranks; rows stay there.
            is_training: whether a backward pass follows. If this is False on one rank, ranks that
                are training treat it as a rank that has ended its training.
            record: filled with the state that `refresh_all` needs; None if the rows will not be
                refreshed, for example rows on a GPU.
            error: error of this rank, if it cannot take part. Then no rank pulls rows from others.

        Raises:
            BaseException: `error`, or the error of another rank, with that rank's number.
            PeerFailure: a rank is gone, does not respond, is in another operation, or could not read
                its rows.
            InvalidArgumentError: ranks have different settings, or pull different tables.
            DeviceError, DeadlineError: the device failed; this is reported to the other ranks.
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
            counts, longest = self._agree(
                phase, mine.counts, mine.routed, codecs, names, mine.error
            )
            if record is not None:
                record.begin(mine.routed, counts)
            levels = self._levels(codecs, longest, kernels)
            return self._pull_sharded(
                requests, codecs, mine.routed, counts, record, kernels, levels
            )

    def _pull_sharded(
        self,
        requests: Sequence[PullRequest],
        codecs: Sequence[Codec],
        routed: RoutedKeys,
        served_counts: Counts,
        record: PullRecord | None,
        kernels: KernelSet,
        levels: TwoLevels | None,
    ) -> list[PullResult]:
        chunk_rows, in_flight = self.session.chunk_rows(codecs), self.options.chunks_in_flight
        if kernels is not HOST:
            stager = self.stager(kernels)
            pull = DevicePull(stager, requests, routed, served_counts, chunk_rows, in_flight)
            with self._report_own_failure(pull):
                return pull.run()
        num_bytes = self._bytes(codecs, routed, served_counts)
        storages = [each.storage for each in requests]
        pull_with = RingPull if levels is None else partial(TwoLevelPull, levels=levels)
        return pull_with(
            self.session.messenger,
            self._executor(storages, num_bytes) if levels is None else InlineExecutor(),
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
        """Pulls the rows of an earlier pull that have changed since. All ranks must call it together.

        Owners know the changed keys, so keys are not sent again.

        Args:
            requests: requests of the pull, with the current storages.
            record: record of the pull.
            changed: for each table, the keys of this rank's shard that have changed since.

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
        """Pushes the gradients of one table; see `push_all`."""
        return self.push_all([PushRequest(table, keys, gradients, make_accumulator)])[0]

    def push_all(
        self,
        requests: Sequence[PushRequest],
        *,
        kernels: KernelSet = HOST,
        error: BaseException | None = None,
    ) -> list[OwnedGradients]:
        """Pushes gradients to their owners, which sum them by key: their own gradients first, then
        those of the previous rank, and so on around the ring.

        Args:
            requests: one request per table, in the same order on all ranks.
            kernels: kernels of the device of keys and gradients, on all ranks; sums stay there.
            error: error of this rank, if it cannot apply the step. Then no rank pushes.

        Raises:
            BaseException: `error`, or the error of another rank, with that rank's number.
            PeerFailure: a rank is gone, does not respond, or is in another operation.
            InvalidArgumentError: ranks have different settings, or push different tables.
            UnsupportedError: a table is replicated, and its gradients are on a device.
            DeviceError, DeadlineError: the device failed before all messages were exchanged; this is
                reported to the other ranks. A later failure is the `error` of the results.
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
                f"push: table {replicated[0].table.name!r} is replicated, so its gradients must be in "
                "host memory, found gradients on a device; pass them as NumPy arrays"
            )
        wire_dtype, option = self.options.gradient_wire_dtype, "gradient_wire_dtype"
        codecs = self._codecs(sharded, kernels, wire_dtype, option)
        names = [_describe_table(each.table.name, kernels) for each in requests]
        with self.session.guard("push", [each.table.name for each in requests]):
            mine = self._route(kernels, sharded, error)
            counts = np.empty((self._world_size, len(requests)), np.int64)
            counts[:, ~is_replicated] = mine.counts
            counts[:, is_replicated] = [len(each.keys) for each in replicated]
            coming, longest = self._agree(
                Phase.PUSH, counts, mine.routed, codecs, names, mine.error
            )
            levels = self._levels(codecs, longest, kernels)
            sums = self._push_sharded(
                sharded, codecs, mine.routed, coming[:, ~is_replicated], kernels, levels
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
        levels: TwoLevels | None,
    ) -> list[OwnedGradients]:
        chunk_rows, in_flight = self.session.chunk_rows(codecs), self.options.chunks_in_flight
        if kernels is not HOST:
            executor = SerialExecutor(self._add_thread)
            stager = self.stager(kernels)
            push = DevicePush(stager, executor, requests, routed, coming, chunk_rows, in_flight)
            with self._report_own_failure():
                return push.run()
        num_bytes = self._bytes(codecs, routed, coming)
        storages = [each.storage for each in requests]
        push_with = RingPush if levels is None else partial(TwoLevelPush, levels=levels)
        return push_with(
            self.session.messenger,
            self._executor([], num_bytes) if levels is None else InlineExecutor(),
            self._executor(storages, num_bytes) if levels is None else InlineExecutor(),
            requests,
            codecs,
            routed,
            coming,
            chunk_rows,
            in_flight,
            self._buffers,
        ).run()

    def _agree(
        self,
        phase: Phase,
        counts: Counts,
        routed: RoutedKeys,
        codecs: Sequence[Codec],
        names: Sequence[str],
        error: BaseException | None,
    ) -> tuple[Counts, int | None]:
        """Begins an exchange, as `ExchangeSession.agree`.

        Returns:
            The counts of the other ranks, and the number of keys of the longest stream of all ranks;
            None if ranks do not exchange messages in two levels.
        """
        if self.session.levels is None:
            return self.session.agree(phase, counts, names, error), None
        longest = int(routed.counts.sum(axis=1).max(initial=0))
        # Without keys if this rank has an error.
        codecs = codecs if error is None else ()
        sizes = stream_bytes(routed.counts, codecs, is_push=phase is Phase.PUSH)
        mine = np.column_stack([np.full(self._world_size, longest), sizes, counts])
        theirs = self.session.agree(phase, mine, names, error)
        longest = max(longest, int(theirs[:, 0].max()))
        return np.ascontiguousarray(theirs[:, NUM_LEVEL_COUNTS:]), longest

    def _levels(
        self, codecs: Sequence[Codec], longest: int | None, kernels: KernelSet
    ) -> TwoLevels | None:
        """Returns the routes in two levels if they are the faster way for the longest stream, which is
        the same decision on all ranks; otherwise None."""
        levels = self.session.levels
        if levels is None or longest is None or kernels is not HOST or not codecs:
            return None
        row_bytes = max(each.row_bytes for each in codecs) + KEY_BYTES
        is_short = longest <= self.session.chunk_rows(codecs)
        is_faster = levels.max_part_bytes is None or longest * row_bytes <= levels.max_part_bytes
        return levels if is_short and is_faster else None

    def stager(self, kernels: KernelSet) -> DeviceStager:
        """Returns the stager of a device, which is created once and closed with this exchange.

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
                f"{option} must be exact for tables on a device, found {wire_dtype.value}, because "
                "numbers are converted only on the CPU; leave the option out, or keep the tables on "
                "the CPU"
            )
        return [each.codec(wire_dtype) for each in requests]

    def _route(
        self,
        kernels: KernelSet,
        requests: Sequence[PullRequest] | Sequence[PushRequest],
        error: BaseException | None,
    ) -> _RoutingResult:
        """Groups keys by owner before an exchange begins. If this fails, all ranks raise the
        error."""
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
                # A `SparringError` is raised on all ranks, which may continue afterwards.
                error = DeviceError(
                    f"keys could not be routed on {kernels.device}: {type(found).__name__}: {found}. "
                    "Nothing was exchanged, and no row has changed; fix the cause, then try again"
                )
                error.__cause__ = found
        nothing = RoutedKeys([], [], [], self._world_size)
        return _RoutingResult(nothing, np.zeros((self._world_size, len(requests)), np.int64), error)

    def _find_own(self, request: PullRequest, kernels: KernelSet) -> PullResult:
        """Finds rows of a table whose rows are all on this rank."""
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
        """Context of work on pulled rows on a device. Reports a failure to the other ranks, which
        continue and would otherwise wait for this rank at the next exchange."""
        try:
            yield
        except Exception as error:
            if kernels is not HOST and not all(map(self.session.is_local, tables)):
                self.session.give_up(error)
            raise

    @contextmanager
    def _report_own_failure(self, pull: DevicePull | None = None) -> Iterator[None]:
        """Reports a failure of the block to the other ranks, unless they already know it."""
        try:
            yield
        except PeerFailure:
            raise  # reported by `guard`
        except BaseException as error:
            if pull is None or not pull.was_reported:
                self.session.give_up(error)
            raise

    def commit(
        self,
        num_rows: Sequence[int],
        error: BaseException | None = None,
        settings: Settings | None = None,
    ) -> list[int]:
        """Waits until all ranks are ready to write the step. All ranks must call it.

        Args:
            num_rows: number of rows of each table that this rank will write.
            error: error of this rank, if it cannot write.
            settings: settings of the update, which must be equal on all ranks.

        Returns:
            Number of rows of each table that all ranks together will write.

        Raises:
            BaseException: `error`, or the error of another rank, with that rank's number.
            PeerFailure: a rank is gone, does not respond, or is in another operation.
        """
        if self._world_size == 1:
            if error is not None:
                raise error
            return list(num_rows)
        mine = np.tile(np.asarray(num_rows, np.int64), (self._world_size, 1))
        with self.session.guard("commit", ()):
            theirs = self.session.agree(Phase.COMMIT, mine, settings or {}, error)
            theirs[self._rank] = num_rows
            totals: list[int] = theirs.sum(axis=0).tolist()
            return totals

    def give_up(self, error: BaseException) -> None:
        """Notifies the other ranks, which continue, that this rank failed, so that none waits for
        it."""
        self.session.give_up(error)

    def end(self) -> None:
        """Notifies the other ranks that this rank takes part in no further exchange, without
        waiting."""
        self.session.end()

    def close(self) -> None:
        """Ends the exchange, and joins its threads. A second call has no effect."""
        self.end()
        self._find_thread.close()
        self._add_thread.close()
        while self._stagers:
            self._stagers.popitem()[1].close()

    def _bytes(self, codecs: Sequence[Codec], routed: RoutedKeys, coming: Counts) -> int:
        """Returns the bytes of the rows that this rank finds or sums, for itself and for others."""
        return compute_memory_bytes(codecs, coming.sum(axis=0) + routed.counts[self._rank])

    def _executor(self, storages: Sequence[Storage | None], num_bytes: int) -> SerialExecutor:
        """Returns the executor of finds. It is the pool if all storages are native, or the calling
        thread for few rows. Otherwise it is a dedicated thread, because a storage may wait or need
        the GIL."""
        if all(each is None or each.capabilities.native for each in storages):
            return InlineExecutor() if num_bytes <= _MAX_INLINE_BYTES else SerialExecutor(None)
        return SerialExecutor(self._find_thread)


def _describe_table(table: str, kernels: KernelSet) -> str:
    """Describes a table for the comparison by ranks, all of which must use the same kind of device."""
    return table if kernels is HOST else f"{table} on a device"
