"""`ParameterClient` and `AsyncParameterClient`: clients of a service with trainable tables."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from typing import Any

import numpy.typing as npt

from sparring.errors import InvalidArgumentError, SparringError
from sparring_serve.client.arguments import check_table_mapping, check_text, check_whole_number
from sparring_serve.client.failures import ShardRestartedError
from sparring_serve.client.lookup_client import (
    AsyncLookupClient,
    Client,
    LookupClient,
    Targets,
)
from sparring_serve.client.session import Steps
from sparring_serve.config import ClientConfig
from sparring_serve.metrics import ServingMetrics
from sparring_serve.parameters.incarnations import Incarnations
from sparring_serve.parameters.push_steps import (
    PushResult,
    ServiceSnapshot,
    TablePush,
    flush_steps,
    push_steps,
    snapshot_steps,
)
from sparring_serve.parameters.push_window import Token
from sparring_serve.parameters.unflushed import add_unflushed, discard_unflushed
from sparring_serve.wire.messages import Wait

__all__ = ["AsyncParameterClient", "ParameterClient"]

_log = logging.getLogger(__name__)

Gradients = TablePush | Sequence[npt.ArrayLike]


def _pushes(
    gradients: Mapping[str, Gradients],
    update_method: str | None,
    hyper: Mapping[str, Any] | None,
) -> dict[str, TablePush]:
    pushes = {}
    for table, each in check_table_mapping("gradients", gradients, "(ids, gradients)").items():
        if isinstance(each, TablePush):
            pushes[table] = each
        elif isinstance(each, (tuple, list)) and len(each) == 2:
            pushes[table] = TablePush(each[0], each[1], update_method, hyper)
        else:
            found = f"{len(each)} values" if isinstance(each, Sized) else type(each).__name__
            raise InvalidArgumentError(
                f"push to table {table!r}: expected a TablePush or a tuple of ids and gradients, found "
                f"{found}",
                table=table,
            )
    if not pushes:
        raise InvalidArgumentError("push: gradients contains no table; omit empty pushes")
    return pushes


def _wait(given: str) -> Wait:
    try:
        return Wait[given.upper()]
    except (KeyError, AttributeError):
        raise InvalidArgumentError(f"wait must be 'queued' or 'applied', found {given!r}") from None


class _PushClient(Client):
    """Common part of both clients. Tokens consist of the name of the client and a number, from 1."""

    _close_at_exit: Callable[[], object]
    """Called at the end of the program if queued pushes have not been flushed."""

    def __init__(
        self,
        targets: Targets,
        config: ClientConfig | None,
        metrics: ServingMetrics | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(targets, config, metrics, clock)
        self.name = secrets.token_hex(8)
        """Name of the client in its push tokens."""
        self._numbers = itertools.count(1)
        self._incarnations = Incarnations()
        self._heard: dict[str, int] = {}
        """Address → failure that the last flush reported."""
        self._has_queued = False
        """Whether pushes were queued since the last flush."""

    def _push_steps(
        self,
        gradients: Mapping[str, Gradients],
        update_method: str | None,
        hyper: Mapping[str, Any] | None,
        wait: str,
        token: Token | None,
        deadline_seconds: float | None,
    ) -> Steps[PushResult]:
        pushes = _pushes(gradients, update_method, hyper)
        waits = _wait(wait)
        if token is not None and not isinstance(token, Token):
            raise InvalidArgumentError(
                "push: token must be a Token of an earlier push, for example error.token, found "
                f"{token!r}"
            )
        if token is not None:
            check_text("push: token.client", token.client)
            check_whole_number("push: token.number", token.number)
        seconds = deadline_seconds
        if seconds is None:
            seconds = self._session.config.push_deadline_seconds
        deadline = self._session.deadline(seconds)
        token = token or Token(self.name, next(self._numbers))
        steps = push_steps(self._session, pushes, token, waits, deadline, self._incarnations)
        return self._queue_steps(steps) if waits == Wait.QUEUED else steps

    def _queue_steps(self, steps: Steps[PushResult]) -> Steps[PushResult]:
        """Runs a push, and records that it was queued unless its error means that it was not."""
        try:
            pushed = yield from steps
        except ShardRestartedError:
            self._note_queued()
            raise
        self._note_queued()
        return pushed

    def _note_queued(self) -> None:
        self._has_queued = True
        add_unflushed(self.name, self._close_at_exit)

    def _flush_steps(self, deadline_seconds: float) -> Steps[tuple[int, ...]]:
        deadline = self._session.deadline(deadline_seconds)
        # The flush raises all failures, so closing the client does not need to flush again.
        self._forget_queued()
        return flush_steps(self._session, self.name, self._heard, deadline, self._incarnations)

    def _forget_queued(self) -> None:
        self._has_queued = False
        discard_unflushed(self.name)


class ParameterClient(LookupClient, _PushClient):
    """A `LookupClient` that also updates tables. All methods are thread-safe.

    Close it, or use it in a ``with`` block: `close` raises an error if queued pushes failed.
    Otherwise, the client is flushed at the end of the program, and failures are logged.

    Examples:
        >>> import numpy as np
        >>> from sparring_serve import ParameterClient, ServingConfig, open_parameter_server
        >>> parameters = {"tables": {"item": {"dim": 2}}, "start": None, "push_log_bytes": 0}
        >>> config = ServingConfig(parameters=parameters)
        >>> with open_parameter_server(config, address="127.0.0.1:0") as server:
        ...     with ParameterClient(server.address) as client:
        ...         _ = client.push({"item": ([7], np.ones((1, 2)))}, wait="applied")
        ...         client.pull({"item": [7, 8]}, deadline_seconds=5.0).found["item"]
        array([ True, False])
    """

    def push(
        self,
        gradients: Mapping[str, Gradients],
        *,
        update_method: str | None = None,
        hyper: Mapping[str, Any] | None = None,
        wait: str = "queued",
        token: Token | None = None,
        deadline_seconds: float | None = None,
    ) -> PushResult:
        """Updates rows with gradients: one step of each table, applied once on each shard.

        If a reply is lost or a queue is full, the attempt is repeated until the deadline.

        Args:
            gradients: Per table, ids ``(n,)`` and gradients ``(n, dim)``, or a `TablePush`.
            update_method: Update method that the tables must have; None accepts any.
            hyper: Hyper-parameters of the tables that are specified by ids and gradients; only `lr`
                may differ from the table's, for this push.
            wait: ``queued`` returns when all shards have queued the push; ``applied`` when the rows
                have changed, so that the next pull sees the update.
            token: Token of an earlier push that failed, to repeat it; None for a new push.
            deadline_seconds: Deadline of the whole call; None uses
                `ClientConfig.push_deadline_seconds`.

        Raises:
            UnknownTableError: A table is not served. Nothing was sent.
            InvalidArgumentError: Gradients, methods or hyper-parameters do not match the tables. No
                row was changed.
            PushFailedError: Some shards did not accept the push; repeat it with its `token`.
            ShardRestartedError: All shards accepted the push, but one of them had restarted before
                and lost acknowledged pushes; raised once per restart.
            DeadlineError, ReplicasFailedError, AccessError: As in `pull`; nothing was sent.
        """
        return self._run(
            self._push_steps(gradients, update_method, hyper, wait, token, deadline_seconds)
        )

    def flush(self, *, deadline_seconds: float = 60.0) -> tuple[int, ...]:
        """Waits until all pushes that any client queued before are applied, and flushes the storages.

        Args:
            deadline_seconds: Deadline of the whole call.

        Returns:
            Number of pushes that each shard has applied.

        Raises:
            PushFailedError: A shard failed, or could not apply a queued push of this client; `token`
                is the token of the first one. The next flush reports only later failures.
            ShardRestartedError: As in `push`.
        """
        return self._run(self._flush_steps(deadline_seconds))

    def save(
        self,
        url: str | os.PathLike[str] = "",
        *,
        deadline_seconds: float | None = None,
        accept_loss: bool = False,
    ) -> ServiceSnapshot:
        """Saves all tables of all shards as one snapshot, including push tokens.

        Each shard writes its part, and the first shard commits the snapshot. It contains all pushes
        that were queued before; later pushes continue during the save.

        Args:
            url: URL of the snapshot in one of the service's folders; a name refers to the first
                folder, and the default name contains the step.
            deadline_seconds: Deadline; None uses `parameters.save_seconds` of the service.
            accept_loss: Save even if a shard restarted and lost acknowledged pushes.

        Raises:
            SnapshotError: A shard is missing, failed or lost acknowledged pushes; the message names
                it, and nothing was saved. If the reply was lost, the snapshot may exist.
            InvalidArgumentError: The URL is not in one of the service's folders.
            DeadlineError, ReplicasFailedError, AccessError: As in `pull`.
        """
        return self._run(
            snapshot_steps(self._session, "Save", url, deadline_seconds, accept_loss=accept_loss)
        )

    def load(
        self,
        url: str | os.PathLike[str],
        *,
        tables: Collection[str] | None = None,
        deadline_seconds: float | None = None,
    ) -> ServiceSnapshot:
        """Replaces all tables of all shards by a snapshot of any number of shards or ranks.

        Args:
            url: URL of the snapshot, as in `save`.
            tables: Load only the rows of these tables, for example if the snapshot contains tables
                that the service does not have. Other tables do not change. Push tokens change only
                if `tables` contains all tables of the service. None loads everything.
            deadline_seconds: Deadline, as in `save`.

        Raises:
            SnapshotError: The snapshot does not exist, is damaged or has other tables, or a shard is
                missing or failed; the message names it. If a shard failed during its load, load
                again: until then, its tables reject pulls and pushes, or are unchanged.
            InvalidArgumentError, DeadlineError, ReplicasFailedError, AccessError: As in `save`.
        """
        return self._run(snapshot_steps(self._session, "Load", url, deadline_seconds, tables))

    def close(self) -> None:
        """Flushes if pushes were queued since the last flush, and closes the connections.

        Further calls of other methods raise `ClosedError`.

        Raises:
            PushFailedError: As in `flush`, with the deadline `ClientConfig.push_deadline_seconds`.
                The client is closed in any case.
        """
        try:
            if self._has_queued and not self._is_closed:
                self.flush(deadline_seconds=self.config.push_deadline_seconds)
        finally:
            self._forget_queued()
            super().close()

    def __exit__(self, *raised: object) -> None:
        try:
            self.close()
        except SparringError as failure:
            if not any(raised):
                raise
            # The error of the block takes precedence.
            _log.error("closing the client after another error failed: %s", failure)

    def _close_at_exit(self) -> None:
        self.close()


class AsyncParameterClient(AsyncLookupClient, _PushClient):
    """`ParameterClient` for asyncio; belongs to the event loop that first uses it."""

    async def push(
        self,
        gradients: Mapping[str, Gradients],
        *,
        update_method: str | None = None,
        hyper: Mapping[str, Any] | None = None,
        wait: str = "queued",
        token: Token | None = None,
        deadline_seconds: float | None = None,
    ) -> PushResult:
        """Updates rows with gradients, like `ParameterClient.push`.

        `gradients`, `update_method`, `hyper`, `wait`, `token` and `deadline_seconds` are those of
        `ParameterClient.push`.

        Raises:
            SparringError: As in `ParameterClient.push`.
        """
        return await self._run(
            self._push_steps(gradients, update_method, hyper, wait, token, deadline_seconds)
        )

    async def flush(self, *, deadline_seconds: float = 60.0) -> tuple[int, ...]:
        """Waits until all queued pushes are applied, like `ParameterClient.flush`.

        Args:
            deadline_seconds: Deadline of the whole call.

        Returns:
            Number of pushes that each shard has applied.

        Raises:
            SparringError: As in `ParameterClient.flush`.
        """
        return await self._run(self._flush_steps(deadline_seconds))

    async def save(
        self,
        url: str | os.PathLike[str] = "",
        *,
        deadline_seconds: float | None = None,
        accept_loss: bool = False,
    ) -> ServiceSnapshot:
        """Saves all tables as one snapshot, like `ParameterClient.save`.

        `url`, `deadline_seconds` and `accept_loss` are those of `ParameterClient.save`.

        Raises:
            SparringError: As in `ParameterClient.save`.
        """
        return await self._run(
            snapshot_steps(self._session, "Save", url, deadline_seconds, accept_loss=accept_loss)
        )

    async def load(
        self,
        url: str | os.PathLike[str],
        *,
        tables: Collection[str] | None = None,
        deadline_seconds: float | None = None,
    ) -> ServiceSnapshot:
        """Loads a snapshot into all shards, like `ParameterClient.load`.

        `url`, `tables` and `deadline_seconds` are those of `ParameterClient.load`.

        Raises:
            SparringError: As in `ParameterClient.load`.
        """
        return await self._run(snapshot_steps(self._session, "Load", url, deadline_seconds, tables))

    async def close(self) -> None:
        """See `ParameterClient.close`."""
        try:
            if self._has_queued and not self._is_closed:
                await self.flush(deadline_seconds=self.config.push_deadline_seconds)
        finally:
            self._forget_queued()
            await super().close()

    async def __aexit__(self, *raised: object) -> None:
        try:
            await self.close()
        except SparringError as failure:
            if not any(raised):
                raise
            _log.error("closing the client after another error failed: %s", failure)

    def _close_at_exit(self) -> None:
        # The event loop of the connections no longer runs.
        _log.error(
            "at exit: client %s queued pushes without a later flush, so their failures are unknown; "
            "await flush() or close() before the program ends",
            self.name,
        )
