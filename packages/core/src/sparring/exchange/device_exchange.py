"""The ring over arrays of a device: the contract of `RingExchange`, for arrays that stay there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from sparring.closable import Closable
from sparring.errors import (
    DeviceError,
    InvalidArgumentError,
    PeerFailure,
    SparringError,
    UnsupportedError,
)
from sparring.exchange.beside import Lane
from sparring.exchange.device_pulling import DevicePull
from sparring.exchange.device_pushing import DevicePush
from sparring.exchange.device_requests import (
    DevicePulled,
    DevicePullRequest,
    DevicePushed,
    DevicePushRequest,
)
from sparring.exchange.device_routing import Counts, DeviceRouted, route_on_device
from sparring.exchange.device_side import DeviceSide
from sparring.exchange.headers import Phase
from sparring.exchange.options import WireDtype
from sparring.exchange.wire import Codec
from sparring.kernel_set import DeviceArray, KernelSet
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.exchange.ring import RingExchange

__all__ = ["DeviceExchange"]


class DeviceExchange(Closable):
    """Moves rows and gradients between devices. Made by `RingExchange.on_device`.

    All ranks call it for the same tables at the same time, as they do `RingExchange`; a rank whose
    tables lie elsewhere is refused. Numbers travel as they are.

    Args:
        exchange: whose collective, shard map and options are used.
        kernels: of the device.

    Raises:
        UnsupportedError: the kernels have no streams.
    """

    def __init__(self, exchange: RingExchange, kernels: KernelSet) -> None:
        self._exchange = exchange
        self._side = DeviceSide(kernels, exchange._link)
        self._owners = kernels.arrays.from_host(exchange._owners.astype(np.int32))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sparring-device")

    @property
    def is_direct(self) -> bool:
        """Whether messages are sent from the device's memory and received into it."""
        return self._side.is_direct

    def pull_all(
        self,
        requests: Sequence[DevicePullRequest],
        *,
        is_training: bool = True,
        error: BaseException | None = None,
    ) -> list[DevicePulled]:
        """Rows from their owners, on the device.

        Args:
            requests: one for each table, in the same order on all ranks.
            is_training: gradients will come.
            error: why this rank cannot take part. Then nobody pulls anything from others.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure, InvalidArgumentError: as `RingExchange.pull_all`.
            DeviceError, DeadlineError: the device failed; other ranks are told.
        """
        exchange = self._exchange
        is_own = [exchange._is_own(each.table) for each in requests]
        if any(is_own):
            others = [each for each, own in zip(requests, is_own, strict=True) if not own]
            if not others and error is not None:
                raise error
            pulled = iter(
                self.pull_all(others, is_training=is_training, error=error) if others else ()
            )
            with self.told([each.table for each in others]):
                return [
                    self._find(each) if own else next(pulled)
                    for each, own in zip(requests, is_own, strict=True)
                ]
        self._check_exact(exchange.options.row_wire_dtype, "row_wire_dtype")
        names = [f"{each.table.name}[0:{each.width}] on a device" for each in requests]
        phase = Phase.LOOKUP if is_training else Phase.READ
        tables = [each.table for each in requests]
        with exchange._guarded("pull", [each.name for each in tables]):
            routed, counts = self._agree(phase, [each.keys for each in requests], names, error)
            pull = DevicePull(
                self._side,
                requests,
                routed,
                counts,
                self._chunk_rows([(each.table, each.width) for each in requests]),
                exchange.options.chunks_in_flight,
            )
            with self._given_up(pull):
                return pull.run()

    def push_all(
        self, requests: Sequence[DevicePushRequest], *, error: BaseException | None = None
    ) -> list[DevicePushed]:
        """Gradients to their owners, added up by key: this rank's first, then those of the rank
        before it, and so on around the ring.

        Args:
            requests: one for each table, in the same order on all ranks.
            error: why this rank cannot apply the step. Then nobody pushes anything.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure, InvalidArgumentError: as `RingExchange.push_all`.
            UnsupportedError: a table is replicated.
            DeviceError, DeadlineError: the device failed before messages were through; other ranks
                are told. What fails later is the `error` of the results.
        """
        exchange = self._exchange
        if exchange._world_size == 1:
            if error is not None:
                raise error
            return [DevicePushed(each.keys, each.gradients) for each in requests]
        for each in requests:
            if each.table.is_replicated:
                raise UnsupportedError(
                    f"table {each.table.name!r} is replicated: its gradients go to all ranks, by "
                    "way of host memory; push them with RingExchange.push_all"
                )
        self._check_exact(exchange.options.gradient_wire_dtype, "gradient_wire_dtype")
        names = [f"{each.table.name} on a device" for each in requests]
        with exchange._guarded("push", [each.table.name for each in requests]):
            keys = [each.keys for each in requests]
            routed, coming = self._agree(Phase.PUSH, keys, names, error)
            push = DevicePush(
                self._side,
                Lane(self._thread),
                requests,
                routed,
                coming,
                self._chunk_rows([(each.table, each.table.dim) for each in requests]),
                exchange.options.chunks_in_flight,
            )
            with self._given_up():
                return push.run()

    def close(self) -> None:
        """Frees the streams. A second call does nothing."""
        self._thread.shutdown()
        self._side.close()

    def _agree(
        self,
        phase: Phase,
        keys: Sequence[DeviceArray],
        names: Sequence[str],
        error: BaseException | None,
    ) -> tuple[DeviceRouted, Counts]:
        """Routes, and begins an exchange. What fails before it begins, all ranks refuse.

        Returns:
            This rank's keys by owner, and ``(world_size, tables)``: the counts of the others.
        """
        exchange, routed = self._exchange, None
        counts = np.zeros((exchange._world_size, len(keys)), np.int64)
        if error is None:
            try:
                routed = route_on_device(
                    self._side.kernels, keys, self._owners, exchange._world_size
                )
                counts = routed.counts
            except SparringError as found:
                error = found
            except Exception as found:
                # As one of ours, all ranks raise it and may go on.
                error = DeviceError(
                    f"keys could not be routed on {self._side.kernels.device}: "
                    f"{type(found).__name__}: {found}. Nothing was exchanged, and no row has changed"
                )
                error.__cause__ = found
        theirs = exchange._agree(phase, counts, names, error)
        assert routed is not None  # else it was refused
        return routed, theirs

    def _find(self, request: DevicePullRequest) -> DevicePulled:
        """In a world of one, or of a table that every rank has whole."""
        kernels = self._side.kernels
        rows = kernels.arrays.empty((len(request.keys), request.width), request.table.dtype)
        found = kernels.arrays.empty((len(request.keys),), "uint8")
        if request.storage is None:
            rows[...] = 0
            found[...] = 0
        elif len(request.keys):
            request.storage._check_open()
            kernels.find_into(request.storage, request.keys, rows, found)
        return DevicePulled(rows, found)

    def _chunk_rows(self, widths: Sequence[tuple[TableConfig, int]]) -> int:
        codecs = [Codec(table.numpy_dtype, width, WireDtype.EXACT) for table, width in widths]
        return self._exchange._rows_of_a_chunk(codecs)

    def _check_exact(self, wire_dtype: WireDtype | str, name: str) -> None:
        if wire_dtype is not WireDtype.EXACT:
            raise InvalidArgumentError(
                f"{name} must be exact for tables on a device, found {WireDtype(wire_dtype).value}: "
                "numbers are narrowed on the CPU only; leave the option out, or keep the tables there"
            )

    @contextmanager
    def told(self, tables: Sequence[TableConfig]) -> Iterator[None]:
        """Tells the others where the block fails, which follows a pull of these tables: they go on,
        and wait for this rank at the next exchange."""
        try:
            yield
        except Exception as error:
            if not all(self._exchange._is_own(table) for table in tables):
                self._exchange.give_up(error)
            raise

    @contextmanager
    def _given_up(self, pull: DevicePull | None = None) -> Iterator[None]:
        """Tells the others where this rank fails, unless they know."""
        try:
            yield
        except PeerFailure:
            raise  # `_guarded` tells them
        except BaseException as error:
            if pull is None or not pull.is_told:
                self._exchange.give_up(error)
            raise
