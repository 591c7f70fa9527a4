"""The ring exchange for arrays of a device: the contract of `RingExchange`; arrays stay on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from sparring.contracts.kernels import DeviceArray, KernelSet
from sparring.contracts.table import TableConfig
from sparring.errors import (
    DeviceError,
    InvalidArgumentError,
    PeerFailure,
    SparringError,
    UnsupportedError,
)
from sparring.exchange.device_pull import DevicePull, DevicePulled, DevicePullRequest
from sparring.exchange.device_push import DevicePush, DevicePushed, DevicePushRequest
from sparring.exchange.device_stager import DeviceStager
from sparring.exchange.headers import Phase
from sparring.exchange.messages import Codec
from sparring.exchange.options import WireDtype
from sparring.exchange.routing import Counts, DeviceRouted, route_on_device
from sparring.exchange.session import ExchangeSession
from sparring.runtime.lifecycle import Closable
from sparring.runtime.threads import SerialExecutor, Threads

__all__ = ["DeviceExchange"]


class DeviceExchange(Closable):
    """Moves rows and gradients between devices. Made by `RingExchange.on_device`.

    All ranks call it for the same tables at the same time, as they do `RingExchange`; a rank whose
    tables are on another device gets an error. Numbers travel unchanged.

    Args:
        session: of this rank's exchanges.
        kernels: of the device.

    Raises:
        UnsupportedError: the kernels have no streams.
    """

    def __init__(self, session: ExchangeSession, kernels: KernelSet) -> None:
        self._session = session
        self._stager = DeviceStager(kernels, session.link)
        self._owners = kernels.arrays.from_host(session.owners.astype(np.int32))
        self._thread = Threads("sparring-device")

    @property
    def is_direct(self) -> bool:
        """Whether messages are sent from the device's memory and received into it."""
        return self._stager.is_direct

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
            error: why this rank cannot take part. Then no rank pulls rows from others.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure, InvalidArgumentError: as `RingExchange.pull_all`.
            DeviceError, DeadlineError: the device failed; other ranks are told.
        """
        session = self._session
        is_own = [session.is_local(each.table) for each in requests]
        if any(is_own):
            others = [each for each, own in zip(requests, is_own, strict=True) if not own]
            if not others and error is not None:
                raise error
            pulled = iter(
                self.pull_all(others, is_training=is_training, error=error) if others else ()
            )
            with self.report_failure([each.table for each in others]):
                return [
                    self._find(each) if own else next(pulled)
                    for each, own in zip(requests, is_own, strict=True)
                ]
        self._check_exact(session.options.row_wire_dtype, "row_wire_dtype")
        names = [f"{each.table.name}[0:{each.width}] on a device" for each in requests]
        phase = Phase.LOOKUP if is_training else Phase.READ
        tables = [each.table for each in requests]
        with session.guard("pull", [each.name for each in tables]):
            routed, counts = self._agree(phase, [each.keys for each in requests], names, error)
            pull = DevicePull(
                self._stager,
                requests,
                routed,
                counts,
                self._chunk_rows([(each.table, each.width) for each in requests]),
                session.options.chunks_in_flight,
            )
            with self._report_own_failure(pull):
                return pull.run()

    def push_all(
        self, requests: Sequence[DevicePushRequest], *, error: BaseException | None = None
    ) -> list[DevicePushed]:
        """Gradients to their owners, added up by key: this rank's first, then those of the rank
        before it, and so on around the ring.

        Args:
            requests: one for each table, in the same order on all ranks.
            error: why this rank cannot apply the step. Then no rank pushes.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure, InvalidArgumentError: as `RingExchange.push_all`.
            UnsupportedError: a table is replicated.
            DeviceError, DeadlineError: the device failed before messages were through; other ranks
                are told. A later failure is the `error` of the results.
        """
        session = self._session
        if session.world_size == 1:
            if error is not None:
                raise error
            return [DevicePushed(each.keys, each.gradients) for each in requests]
        for each in requests:
            if each.table.is_replicated:
                raise UnsupportedError(
                    f"table {each.table.name!r} is replicated: its gradients go to all ranks through "
                    "host memory; push them with RingExchange.push_all"
                )
        self._check_exact(session.options.gradient_wire_dtype, "gradient_wire_dtype")
        names = [f"{each.table.name} on a device" for each in requests]
        with session.guard("push", [each.table.name for each in requests]):
            keys = [each.keys for each in requests]
            routed, coming = self._agree(Phase.PUSH, keys, names, error)
            push = DevicePush(
                self._stager,
                SerialExecutor(self._thread),
                requests,
                routed,
                coming,
                self._chunk_rows([(each.table, each.table.dim) for each in requests]),
                session.options.chunks_in_flight,
            )
            with self._report_own_failure():
                return push.run()

    def close(self) -> None:
        """Frees the streams. A second call does nothing."""
        self._thread.close()
        self._stager.close()

    def _agree(
        self,
        phase: Phase,
        keys: Sequence[DeviceArray],
        names: Sequence[str],
        error: BaseException | None,
    ) -> tuple[DeviceRouted, Counts]:
        """Routes keys, and begins an exchange. An error before it begins is raised by all ranks.

        Returns:
            This rank's keys by owner, and ``(world_size, tables)``: the counts of the others.
        """
        session, routed = self._session, None
        counts = np.zeros((session.world_size, len(keys)), np.int64)
        if error is None:
            try:
                routed = route_on_device(
                    self._stager.kernels, keys, self._owners, session.world_size
                )
                counts = routed.counts
            except SparringError as found:
                error = found
            except Exception as found:
                # As one of ours, all ranks raise it and may go on.
                error = DeviceError(
                    f"keys could not be routed on {self._stager.kernels.device}: "
                    f"{type(found).__name__}: {found}. Nothing was exchanged, and no row has changed"
                )
                error.__cause__ = found
        theirs = session.agree(phase, counts, names, error)
        assert routed is not None  # otherwise `agree` has raised
        return routed, theirs

    def _find(self, request: DevicePullRequest) -> DevicePulled:
        """Finds rows of a table that this rank holds whole."""
        kernels = self._stager.kernels
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
        return self._session.chunk_rows(codecs)

    def _check_exact(self, wire_dtype: WireDtype | str, name: str) -> None:
        if wire_dtype is not WireDtype.EXACT:
            raise InvalidArgumentError(
                f"{name} must be exact for tables on a device, found {WireDtype(wire_dtype).value}: "
                "numbers are narrowed on the CPU only; leave the option out, or keep the tables there"
            )

    @contextmanager
    def report_failure(self, tables: Sequence[TableConfig]) -> Iterator[None]:
        """Tells the other ranks if the block fails. It follows a pull of these tables: other ranks
        go on, and would wait for this rank at the next exchange."""
        try:
            yield
        except Exception as error:
            if not all(self._session.is_local(table) for table in tables):
                self._session.give_up(error)
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
                self._session.give_up(error)
            raise
