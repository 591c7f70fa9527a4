"""The ring exchange: keys to their owners and rows back, gradients to their owners.

At hop h, rank r asks rank r+h and serves rank r-h: every hop is a permutation of the ranks, so no
two ranks send to one. Hop 0 is a rank's own shard and touches no wire; in a world of one it is all
there is. Empty hops are ordinary: a rank without keys for a table still takes part in each.

``docs/explanation/ring-exchange.md`` draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.collective import Collective
from sparring.contracts.kernels import KernelSet
from sparring.contracts.results import Columns, Keys, Rows
from sparring.contracts.shard_map import ShardMap
from sparring.contracts.storage import Storage
from sparring.contracts.table import TableConfig
from sparring.exchange.agreement import Settings
from sparring.exchange.device_exchange import DeviceExchange
from sparring.exchange.headers import Phase
from sparring.exchange.link import Buffers
from sparring.exchange.messages import (
    Codec,
    OwnedGradients,
    Pulled,
    PullRequest,
    PushRequest,
    find_rows,
)
from sparring.exchange.options import ExchangeOptions, WireDtype
from sparring.exchange.pull import RingPull
from sparring.exchange.push import RingPush, push_to_replicas
from sparring.exchange.refresh import ChangedKeys, PullRecord, Refreshed, refresh, refresh_own
from sparring.exchange.routing import Routed, route
from sparring.exchange.session import ExchangeSession
from sparring.runtime.lifecycle import Closable
from sparring.runtime.threads import InlineExecutor, SerialExecutor, Threads
from sparring.runtime.trace import Trace

__all__ = ["RingExchange"]

_FEW_ROWS = 4096
"""Finding or adding up so many rows takes less time than handing them to another thread."""


class RingExchange(Closable):
    """Moves rows and gradients between ranks. One thread uses it.

    Args:
        collective: this rank's place in the group.
        shard_map: the owner of each partition; the same on all ranks.
        options: chunks and wire dtypes; the same on all ranks.
        settings: returns everything else that must be the same on all ranks; compared at each
            exchange.

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
        self.session = ExchangeSession(
            collective, shard_map, options or ExchangeOptions(), settings
        )
        self.options = self.session.options
        self.counters = self.session.counters
        self._rank = collective.rank
        self._world_size = collective.world_size
        self._buffers = Buffers()
        self._find_thread = Threads("sparring-find")
        self._on_devices: dict[str, DeviceExchange] = {}

    @property
    def step(self) -> int:
        """Steps applied so far; errors name it, and ranks compare it."""
        return self.session.step

    @step.setter
    def step(self, step: int) -> None:
        self.session.step = step

    @property
    def trace(self) -> Trace | None:
        """Receives spans; None: nothing is traced."""
        return self.session.link.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.session.link.trace = trace

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
            record: filled with the state that `refresh_all` needs; None: no refresh will follow.
            error: why this rank cannot take part. Then no rank pulls rows from others.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent, elsewhere, or could not read its rows.
            InvalidArgumentError: ranks were set up differently, or pull other tables.
        """
        is_own = [self.session.is_local(each.table) for each in requests]
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
        with self.session.guard("pull", [each.table.name for each in requests]):
            routed = route([each.keys for each in requests], self.session.owners, self._world_size)
            counts = self.session.agree(phase, routed.counts, names, error)
            if record is not None:
                record.begin(routed, counts)
            return self._pull_sharded(requests, codecs, routed, counts, record)

    def _pull_sharded(
        self,
        requests: Sequence[PullRequest],
        codecs: Sequence[Codec],
        routed: Routed,
        served_counts: npt.NDArray[np.int64],
        record: PullRecord | None,
    ) -> list[Pulled]:
        num_rows = int(served_counts.sum()) + len(routed.streams[self._rank])
        return RingPull(
            self.session.link,
            self._executor([each.storage for each in requests], num_rows),
            requests,
            codecs,
            routed,
            served_counts,
            self.session.chunk_rows(codecs),
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
                self.session.link,
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
        self, requests: Sequence[PushRequest], *, error: BaseException | None = None
    ) -> list[OwnedGradients]:
        """Gradients to their owners, added up by key: this rank's first, then those of the rank
        before it, and so on around the ring.

        Args:
            requests: one for each table, in the same order on all ranks.
            error: why this rank cannot apply the step. Then no rank pushes.

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
        with self.session.guard("push", names):
            routed = route([each.keys for each in sharded], self.session.owners, self._world_size)
            counts = np.empty((self._world_size, len(requests)), np.int64)
            counts[:, ~is_replicated] = routed.counts
            counts[:, is_replicated] = [len(each.keys) for each in replicated]
            coming = self.session.agree(Phase.PUSH, counts, names, error)
            codecs = [each.codec(wire_dtype) for each in sharded]
            owned = iter(self._push_sharded(sharded, codecs, routed, coming[:, ~is_replicated]))
            everywhere = iter(
                push_to_replicas(
                    self.session.link,
                    replicated,
                    [each.codec(wire_dtype) for each in replicated],
                    coming[:, is_replicated],
                )
            )
        return [next(everywhere if each.table.is_replicated else owned) for each in requests]

    def _push_sharded(
        self,
        requests: Sequence[PushRequest],
        codecs: Sequence[Codec],
        routed: Routed,
        coming: npt.NDArray[np.int64],
    ) -> list[OwnedGradients]:
        num_rows = int(coming.sum()) + len(routed.streams[self._rank])
        return RingPush(
            self.session.link,
            self._executor([], num_rows),
            self._executor([each.storage for each in requests], num_rows),
            requests,
            codecs,
            routed,
            coming,
            self.session.chunk_rows(codecs),
            self.options.chunks_in_flight,
            self._buffers,
        ).run()

    def on_device(self, kernels: KernelSet) -> DeviceExchange:
        """The exchange for arrays of a device, which stay there. Closed with this one.

        Raises:
            UnsupportedError: the kernels have no streams.
        """
        found = self._on_devices.get(kernels.device)
        if found is None:
            found = self._on_devices[kernels.device] = DeviceExchange(self.session, kernels)
        return found

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
        while self._on_devices:
            self._on_devices.popitem()[1].close()

    def _executor(self, storages: Sequence[Storage | None], num_rows: int) -> SerialExecutor:
        """Runs finds on the pool, unless a storage may wait or needs the GIL, or the rows are too few to
        be worth another thread."""
        if all(each is None or each.capabilities.native for each in storages):
            return InlineExecutor() if num_rows <= _FEW_ROWS else SerialExecutor(None)
        return SerialExecutor(self._find_thread)
