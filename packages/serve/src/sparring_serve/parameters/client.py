"""`ParameterClient` and `AsyncParameterClient`: clients of a service whose tables learn."""

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
                f"push to table {table!r}: must be a TablePush, or a tuple of ids and gradients, found "
                f"{found}",
                table=table,
            )
    if not pushes:
        raise InvalidArgumentError("push: no table was given; leave empty pushes out")
    return pushes


def _wait(given: str) -> Wait:
    try:
        return Wait[given.upper()]
    except (KeyError, AttributeError):
        raise InvalidArgumentError(f"wait must be 'queued' or 'applied', found {given!r}") from None


class _PushClient(Client):
    """The part that both clients share: tokens are the name of a client, and numbers from 1."""

    _close_at_exit: Callable[[], object]
    """Called when the program ends and has not flushed after pushes that were queued."""

    def __init__(
        self,
        targets: Targets,
        config: ClientConfig | None,
        metrics: ServingMetrics | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(targets, config, metrics, clock)
        self.name = secrets.token_hex(8)
        """The client in its push tokens."""
        self._numbers = itertools.count(1)
        self._incarnations = Incarnations()
        self._heard: dict[str, int] = {}
        """Of each address the failure that its last flush told."""
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
                f"push: token must be that of an earlier push, as error.token, found {token!r}"
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
        """Notes that a push was queued. After other errors the caller knows that it was not."""
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
        # Whatever it finds is raised, so the end of the client does not ask again.
        self._forget_queued()
        return flush_steps(self._session, self.name, self._heard, deadline, self._incarnations)

    def _forget_queued(self) -> None:
        self._has_queued = False
        discard_unflushed(self.name)


class ParameterClient(LookupClient, _PushClient):
    """A `LookupClient` that changes tables, too. Any thread may call any method.

    Close it, or use it in a ``with`` block: `close` raises failures of pushes that were queued. If the
    program ends without that, it flushes then, and logs them.
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
        """Updates rows by gradients: one step of each table, applied once on each shard.

        An attempt whose answer is lost is made again, and one that found a full queue after a
        pause, until the deadline.

        Args:
            gradients: by table: ids ``(n,)`` and gradients ``(n, dim)``, or a `TablePush`.
            update_method: that tables must have; None: whatever they have.
            hyper: hyper-parameters of tables that are given as ids and gradients; only `lr` may be
                another than the table's, for this push.
            wait: ``queued``: return when all shards have it in their queues; ``applied``: when rows have
                changed, so that the next pull sees it.
            token: of an earlier push that failed, to push it again; None: a new one.
            deadline_seconds: for all of it; None: `ClientConfig.push_deadline_seconds`.

        Raises:
            UnknownTableError: a table is not served. Nothing was sent.
            InvalidArgumentError: gradients, methods or hyper-parameters do not fit the tables. No row was
                changed.
            PushFailedError: some shards have not taken it; its `token` pushes it again.
            ShardRestartedError: all shards have taken it, and one of them restarted before that without
                all pushes that it had acknowledged; raised once per restart.
            DeadlineError, ReplicasFailedError, AccessError: as `pull`; nothing was sent.
        """
        return self._run(
            self._push_steps(gradients, update_method, hyper, wait, token, deadline_seconds)
        )

    def flush(self, *, deadline_seconds: float = 60.0) -> tuple[int, ...]:
        """Returns when all pushes that any client queued before are applied, and storages flushed.

        Returns:
            Of each shard the pushes that it has applied.

        Raises:
            PushFailedError: a shard failed, or could not apply a push of this client that was queued;
                `token` is that of the first one. The next flush tells of later ones only.
            ShardRestartedError: as `push`.
        """
        return self._run(self._flush_steps(deadline_seconds))

    def save(
        self,
        url: str | os.PathLike[str] = "",
        *,
        deadline_seconds: float | None = None,
        accept_loss: bool = False,
    ) -> ServiceSnapshot:
        """Saves all tables of all shards as one snapshot, push tokens included.

        Each shard writes its part, and the first commits the whole. It holds all pushes that were queued
        before; later ones go on meanwhile.

        Args:
            url: of the snapshot, in one of the service's folders; a name alone is one in the first, and
                without a name it is called by its step.
            deadline_seconds: None: `parameters.save_seconds` of the service.
            accept_loss: save although a shard restarted without all pushes that it had acknowledged.

        Raises:
            SnapshotError: a shard is missing or failed, or has lost acknowledged pushes, and is named;
                nothing was saved. Where the answer was lost, the snapshot may be there.
            InvalidArgumentError: the URL is in none of the service's folders.
            DeadlineError, ReplicasFailedError, AccessError: as `pull`.
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
        """Replaces all tables of all shards by those of a snapshot, of any number of shards or ranks.

        Args:
            url: as of `save`.
            tables: load the rows of these only, as where the snapshot has others that the service does
                not. Other tables stay as they are, and so do push tokens, unless these are all tables
                of the service. None: everything.
            deadline_seconds: as of `save`.

        Raises:
            SnapshotError: there is none, it is damaged or of other tables, or a shard is missing or
                failed, and is named. Where a shard failed while it loaded, load again: tables
                refuse pulls and pushes, or are those of before, until then.
            InvalidArgumentError, DeadlineError, ReplicasFailedError, AccessError: as `save`.
        """
        return self._run(snapshot_steps(self._session, "Load", url, deadline_seconds, tables))

    def close(self) -> None:
        """Flushes if pushes were queued since the last flush, and ends the connections.

        A second call does nothing; any other call then raises.

        Raises:
            PushFailedError: as `flush`, within `ClientConfig.push_deadline_seconds`. The client is
                closed.
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
            # The error of the block is the one to raise.
            _log.error("%s", failure)

    def _close_at_exit(self) -> None:
        self.close()


class AsyncParameterClient(AsyncLookupClient, _PushClient):
    """`ParameterClient` for asyncio; of the event loop that first uses it."""

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
        """As `ParameterClient.push`."""
        return await self._run(
            self._push_steps(gradients, update_method, hyper, wait, token, deadline_seconds)
        )

    async def flush(self, *, deadline_seconds: float = 60.0) -> tuple[int, ...]:
        """As `ParameterClient.flush`."""
        return await self._run(self._flush_steps(deadline_seconds))

    async def save(
        self,
        url: str | os.PathLike[str] = "",
        *,
        deadline_seconds: float | None = None,
        accept_loss: bool = False,
    ) -> ServiceSnapshot:
        """As `ParameterClient.save`."""
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
        """As `ParameterClient.load`."""
        return await self._run(snapshot_steps(self._session, "Load", url, deadline_seconds, tables))

    async def close(self) -> None:
        """As `ParameterClient.close`."""
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
            _log.error("%s", failure)

    def _close_at_exit(self) -> None:
        # The event loop that its connections belong to is gone.
        _log.error(
            "at exit: client %s queued pushes and was not flushed after them, so failures of them are "
            "not known; await its flush() or close() before the program ends",
            self.name,
        )
