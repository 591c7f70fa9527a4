"""Pushes and flushes without a network: takes request bytes, returns reply bytes or raises
`StatusError`.

The file is long because a push, its replay and its replication share the same parts.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.adapter import parse_hyper
from sparring.contracts import HyperParameters
from sparring.errors import InvalidArgumentError, SnapshotError, SparringError, StorageIOError
from sparring_serve.client.transport import Transport
from sparring_serve.declaration import TableDeclaration
from sparring_serve.parameters.incarnations import has_earlier_pushes, new_incarnation
from sparring_serve.parameters.push_failures import PushFailures
from sparring_serve.parameters.push_log import PushLog
from sparring_serve.parameters.push_log_files import Base, RecordKind, base_in
from sparring_serve.parameters.push_queue import PushQueue
from sparring_serve.parameters.push_window import WIDTH, Token, Verdict
from sparring_serve.parameters.scheduled_saves import ScheduledSaves
from sparring_serve.parameters.shard import Gradients, ParameterShard
from sparring_serve.parameters.snapshots import ShardSnapshots, find_superseded
from sparring_serve.replication.owner import ReplicaPlace
from sparring_serve.replication.shard_replication import ShardReplication
from sparring_serve.replication.store import CoordinationStore
from sparring_serve.resizing.map_store import MapStore
from sparring_serve.resizing.moves import Moves
from sparring_serve.service import LookupService, ShardPosition, decode_request, parse_ids
from sparring_serve.status import Status, StatusError
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.fields import Buffer, encode
from sparring_serve.wire.messages import (
    FlushReply,
    FlushRequest,
    PushReply,
    PushRequest,
    Record,
    TableGradients,
    Wait,
)

__all__ = ["ParameterService"]

_log = logging.getLogger(__name__)

_CLIENT = re.compile(r"[A-Za-z0-9_\-]{1,64}\Z")
_MAX_REASON = 1000
"""Maximum number of characters of a reason in a reply."""


class ParameterService:
    """Updates the tables of one server. All methods are thread-safe.

    Args:
        shard: Tables of the shard.
        lookups: Service that answers lookups from them.
        transport: Connections to the other shards, for saves and loads.
        maps: The shard map, if partitions can move to other shards.
    """

    def __init__(
        self,
        shard: ParameterShard,
        lookups: LookupService,
        transport: Transport,
        maps: MapStore | None = None,
    ) -> None:
        self.shard, self.lookups = shard, lookups
        config = shard.config
        self.queue = PushQueue(config.queue_pushes, config.queue_bytes)
        self._transport = transport
        self._push_log: PushLog | None = None
        # A push may be applied before its callback is added. The callback then runs in the thread that
        # already has this lock.
        self._lock = threading.RLock()
        self._maps = maps
        self.moves = Moves(shard, lookups, self.queue, transport, self._in_order, self._lock, maps)
        self._snapshots = ShardSnapshots(shard, self.queue, transport, self._in_order, self.moves)
        if maps is not None:
            lookups.read_map = self.moves.read_map
        self._pending: dict[Token, Future[Any]] = {}
        lookups.metrics.add_gauges(self._gauges)
        self._failures = PushFailures(config.max_clients)
        self.replication: ShardReplication | None = None
        """Role of this replica of the shard; None if the shard has no followers."""
        self.scheduled: ScheduledSaves | None = None
        if config.save.every_seconds is not None and not shard.position.shard:
            self.scheduled = ScheduledSaves(
                config, self._snapshots.save_scheduled, shard.fail_save, lookups.metrics
            )

    def resume(self) -> None:
        """Opens the push log and replays the pushes since the snapshot that the shard started with.

        Raises:
            StorageIOError: The log cannot be read or written.
            SnapshotError: Its pushes do not match the tables.
        """
        shard, config = self.shard, self.shard.config
        if config.push_log_bytes:
            log = PushLog(
                config.push_log_folder,
                shard.position.shard,
                0 if self._maps is not None else shard.position.shards.num_shards,
                config.push_log_bytes,
                config.push_log_sync_milliseconds,
            )
            log.incarnation = shard.incarnation
            try:
                # Rows in a persistent storage may already contain the logged pushes.
                base = shard.base_of(shard.began_with)
                if not base.url and shard.has_rows:
                    base = Base("rows that a storage kept")
                if self._maps is not None:
                    log.partitions = self.moves.partitions()
                # Pushes may have keys that belong to other shards now.
                position = self.lookups.position
                self.lookups.position = ShardPosition(ShardReplicas((("replay",),)))
                start = None if shard.is_outside else config.start
                resumed = log.resume(base, self._replay, start=start, change=self.moves.replay)
                self.lookups.position = position
            except BaseException:
                log.close()
                raise
            self._push_log = log
            shard.incarnation = log.incarnation
            if resumed.num_pushes:
                _log.info("replayed the log of %d pushes, step %d", resumed.num_pushes, shard.steps)
            if resumed.lost and not shard.is_outside:
                shard.note_loss(resumed.lost)
            elif resumed.num_pushes:
                shard.not_fresh = ""  # the log contains everything since the previous snapshot
        if self._maps is not None:
            self.moves.settle(self._maps.read() or shard.position.shards)
        if shard.not_fresh:
            shard.note_loss(f"the newest snapshot is damaged: {shard.not_fresh}")
        for _ in range(shard.num_skipped):
            self.lookups.metrics.count_refresh("refused")
        shard.known_at_start = shard.windows.newest()
        self.lookups.parameters = shard.describe()

    def join(self, place: ReplicaPlace, store: CoordinationStore) -> None:
        """Joins the other replicas of the shard, after `resume`.

        Args:
            place: Place of this replica.
            store: Store of the service; closed with this service.
        """
        config = self.shard.config.replication
        assert config is not None
        assert self._push_log is not None
        self.replication = ShardReplication(
            self, self._push_log, self._lock, config, place, self._transport, store
        )
        self.lookups.leadership = self.replication
        self._snapshots.replication = self.replication
        self.replication.start()

    def _replay(self, content: bytes) -> None:
        request: PushRequest = decode_request(PushRequest, content)
        try:
            pushed = self._checked(request, Wait.APPLIED)
        except StatusError as refusal:
            raise SnapshotError(
                f"replay of the push log in {self.shard.config.push_log_folder} failed at push "
                f"{request.sequence} of client {request.client}: {refusal}; start with the tables that "
                "it was logged with and save, or move the log to another folder"
            ) from refusal
        token = _token(request)
        try:
            self.shard.apply(token, pushed)
        except SparringError as error:
            # The next flush reports the failure to the client, as without a restart.
            self._failures.add(token, str(error))

    @contextmanager
    def _in_order(self) -> Iterator[PushLog | None]:
        """Locks the order in which pushes are logged and queued."""
        with self._lock:
            yield self._push_log

    def push(self, content: Buffer, remaining_seconds: float) -> bytes:
        """Answers a PushRequest with a PushReply.

        Raises:
            StatusError: This call has not changed any row; with DEADLINE_EXCEEDED, the push still
                waits.
        """
        request: PushRequest = decode_request(PushRequest, content)
        token, wait = _token(request), _wait(request)
        replication, epoch, position = self.replication, 0, 0
        if replication is not None:
            replication.check_leader("push", request.epoch)
            replication.check_size(len(content))
        self.moves.refresh(request.map_number)
        pushed = self._checked(request, wait)
        self.lookups.charge(sum(len(each.ids) for each in pushed))
        begin = time.monotonic()
        with self._lock:
            if replication is not None:
                epoch = replication.check_leader("push")
                replication.check_followers()
            self.moves.check(request.map_number, pushed)
            future = self._pending.get(token)
            if (was_known := future is not None) is False:
                was_known = self._was_applied(token)
            if not was_known:
                future = self._queue(token, pushed, wait, content)
            if self._push_log is not None:
                position = self._push_log.position
        is_replicated = True
        if replication is not None:
            is_replicated = replication.replicate(epoch, position, remaining_seconds)
            remaining_seconds -= time.monotonic() - begin
        if future is not None and wait is Wait.APPLIED:
            self._result(future, remaining_seconds, "push")
        if replication is not None:
            replication.check_still_leader("push", epoch)
        self._note_incarnation(request)
        shard = self.shard
        known = shard.known_at_start.get(request.client, 0)
        return encode(
            PushReply(was_known, shard.steps, shard.incarnation, known, epoch, not is_replicated)
        )

    def _queue(
        self, token: Token, pushed: list[Gradients], wait: Wait, content: Buffer
    ) -> Future[Any]:
        """Logs a push, and adds it to the queue. The caller has the lock of the order."""
        future = self._pending[token] = self.queue.push(
            lambda: self._apply(token, pushed), len(content), self._logged(content)
        )
        future.add_done_callback(lambda done: self._end(token, done, wait))
        return future

    # -- methods of Follower

    def apply_record(self, record: Record) -> bool:
        """See `Follower.apply_record`."""
        log = self._push_log
        assert log is not None
        if record.kind == RecordKind.HEADER:
            header = json.loads(bytes(record.payload))
            base, is_load = header["base"], header["is_load"]
            if is_load:
                log.superseded = find_superseded(self.shard.config.folders[0], base)
            log.begin(base_in(header), is_load=is_load, is_record=True)
            if is_load:
                self.queue.call(lambda: self._load_for_leader(base))
            return True
        request: PushRequest = decode_request(PushRequest, record.payload)
        wait = _wait(request)
        try:
            self._queue(_token(request), self._checked(request, wait), wait, record.payload)
        except StatusError as refusal:
            if refusal.status is Status.RESOURCE_EXHAUSTED:
                return False
            raise
        return True

    def _load_for_leader(self, url: str) -> None:
        try:
            self.shard.load(url)
        except SparringError as error:
            _log.error(
                "this follower could not load %s, as its leader did: %s; restart it", url, error
            )
            assert self._push_log is not None
            self._push_log.epoch = -1  # it must not lead
            raise

    def reset_rows(self, base: str) -> None:
        """See `Follower.reset_rows`."""

        def reset() -> None:
            self.shard.reset()
            if base:
                self.shard.load(base)
            self.shard.known_at_start = self.shard.windows.newest()

        self.queue.call(reset).result()

    def base_of(self, url: str) -> Base:
        """See `Follower.base_of`."""
        return self.shard.base_of(url)

    def adopt(self, incarnation: int, lost: str) -> None:
        """See `Follower.adopt`."""
        self.shard.lost = lost
        if incarnation != self.shard.incarnation:
            self._take_incarnation(incarnation)

    @property
    def lost(self) -> str:
        """See `Follower.lost`."""
        return self.shard.lost

    def lead(self, may_lack_pushes: str) -> Future[Any]:
        """See `Follower.lead`."""
        shard = self.shard
        assert self._push_log is not None
        if may_lack_pushes:
            shard.is_settled = False
            shard.note_loss(may_lack_pushes)
            self._take_incarnation(new_incarnation())

        def end() -> None:
            if may_lack_pushes:
                shard.known_at_start = shard.windows.newest()

        return self.queue.call(end)

    def _take_incarnation(self, incarnation: int) -> None:
        log = self._push_log
        assert log is not None
        log.incarnation = incarnation
        try:
            log.begin(None)
        except StorageIOError:
            log.incarnation = self.shard.incarnation
            raise
        self.shard.incarnation = incarnation
        self.lookups.parameters = self.shard.describe()

    def replicate(self, content: bytes, remaining_seconds: float) -> bytes:
        """Answers a ReplicateRequest of the leader of this shard."""
        if self.replication is None:
            raise StatusError(
                Status.FAILED_PRECONDITION,
                "replicate: this server has no parameters.replication; start all replicas with the same "
                "configuration",
                reason="no_replication",
            )
        return self.replication.answer(content)

    def _logged(self, content: Buffer) -> Callable[[], None]:
        def write() -> None:
            if self._push_log is not None:
                try:
                    self._push_log.append(content)
                except StorageIOError as error:
                    raise StatusError(
                        Status.RESOURCE_EXHAUSTED,
                        f"{error}; the push was not accepted. Push again later with the same token",
                        reason="push_log",
                    ) from error

        return write

    def _note_incarnation(self, request: PushRequest) -> None:
        shard = self.shard
        is_known = request.incarnation in (0, shard.incarnation)
        if not is_known and has_earlier_pushes(shard.incarnation):
            shard.note_loss(
                f"this server restarted and does not have all acknowledged pushes of client "
                f"{request.client}"
            )

    def flush(self, content: Buffer, remaining_seconds: float) -> bytes:
        """Answers a FlushRequest with a FlushReply."""
        request: FlushRequest = decode_request(FlushRequest, content)
        replication, epoch = self.replication, 0
        if replication is not None:
            epoch = replication.check_leader("flush", request.epoch)
        self.moves.refresh(request.map_number)
        self.moves.check(request.map_number)
        self._result(self.queue.call(self.shard.flush), remaining_seconds, "flush")
        if replication is not None:
            replication.check_still_leader("flush", epoch)
        shard = self.shard
        known = shard.known_at_start.get(request.client, 0)
        told = self._failures.report(request.client, request.heard)
        failure = (0, 0, "") if told is None else (told.name, told.push, str(told)[:_MAX_REASON])
        return encode(FlushReply(shard.steps, *failure, shard.incarnation, known, epoch))

    def methods(self) -> dict[str, tuple[str, Callable[[bytes, float], bytes]]]:
        """See `Changes.methods`."""
        snapshots = self._snapshots
        return {
            "Push": ("push", self.push),
            "Flush": ("push", self.flush),
            "Save": ("admin", snapshots.save),
            "Load": ("admin", snapshots.load),
            "SavePart": ("admin", snapshots.save_part),
            "LoadPart": ("admin", snapshots.load_part),
            "Replicate": ("admin", self.replicate),
            "Move": ("admin", self.moves.move),
            "MovePart": ("admin", self.moves.move_part),
        }

    def check_deadline(self, method: str, remaining_seconds: float) -> None:
        """See `Changes.check_deadline`."""
        check = self.lookups.check_deadline if method == "Push" else self.check_long_deadline
        check(remaining_seconds)

    def resign(self) -> None:
        """See `Changes.resign`."""
        if self.replication is not None:
            self.replication.close()

    def close(self) -> None:
        """Cancels a running save, applies all waiting pushes, and closes the log."""
        if self.scheduled is not None:
            self.scheduled.close()
        self.resign()
        self.queue.close()
        self._transport.close()
        if self._maps is not None:
            self._maps.close()
        if self._push_log is not None:
            self._push_log.close()

    def check_long_deadline(self, remaining_seconds: float) -> None:
        """Raises `StatusError` if the deadline of a potentially long call is missing, too long or has
        passed."""
        most = self.shard.config.save_seconds
        if not 0 < remaining_seconds <= 1.05 * most:
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"the call must have a deadline of at most {most:g} s (parameters.save_seconds), found "
                f"{remaining_seconds:.3g} s; set one",
                reason="deadline",
            )

    def _gauges(self) -> dict[str, float]:
        return {
            "pushes_waiting": float(self.queue.num_pushes),
            "push_bytes_waiting": float(self.queue.num_bytes),
            "push_log_bytes": 0.0 if self._push_log is None else float(self._push_log.num_bytes),
            "push_log_gap": float(self._push_log is not None and bool(self._push_log.gap)),
            "pushes_lost": float(bool(self.shard.lost)),
            **({} if self.replication is None else self.replication.gauges()),
        }

    # -- parts of a push

    def _checked(self, request: PushRequest, wait: Wait) -> list[Gradients]:
        """Validates a push as far as possible before it is queued."""
        asked = [(each.table, parse_ids(each.ids)) for each in request.tables]
        self.lookups.check_tables(asked)
        pushed = []
        for each, (table, ids) in zip(request.tables, asked, strict=True):
            declared = self.shard.config.tables[table]
            gradients = _gradients(each, len(ids), declared)
            if wait is Wait.QUEUED:  # otherwise the engine reports it to the waiting caller
                self._check_finite(table, gradients)
            pushed.append(Gradients(table, _aligned(ids), gradients, _hyper(each, declared)))
        return pushed

    def _check_finite(self, table: str, gradients: npt.NDArray[Any]) -> None:
        if self.shard.config.non_finite_gradients == "raise" and not np.isfinite(gradients).all():
            raise _wrong(
                f"push to table {table!r}: gradients contain NaN or infinity, and "
                "parameters.non_finite_gradients is raise; no row was changed. Reduce the learning "
                "rate, clip gradients, or start the service with non_finite_gradients: skip"
            )

    def _was_applied(self, token: Token) -> bool:
        verdict = self.shard.windows.verdict(token)
        if verdict == Verdict.FORGOTTEN:
            raise StatusError(
                Status.FAILED_PRECONDITION,
                f"push {token.number} of client {token.client} is older than its last {WIDTH} pushes, so "
                "it is unknown whether it was applied; it was not applied now. If it is missing, push "
                "again without the token",
                reason="push_forgotten",
            )
        if verdict == Verdict.IN_PART:
            raise StatusError(
                Status.FAILED_PRECONDITION,
                f"push {token.number} of client {token.client} was applied in part and is not applied "
                "again; load the last snapshot on all shards, or continue without the other part",
                reason="push_in_part",
            )
        return verdict == Verdict.APPLIED and not self.shard.windows.missing_from(token)

    def _apply(self, token: Token, pushed: list[Gradients]) -> None:
        self.shard.apply(token, pushed)

    def _end(self, token: Token, done: Future[Any], wait: Wait) -> None:
        """Processes the result of a push, on the thread that applied it."""
        error = done.exception()
        with self._lock:
            self._pending.pop(token, None)
        if error is None:
            self._failures.drop(token)
        elif wait is Wait.QUEUED:
            self._failures.add(token, str(error))

    @staticmethod
    def _result(future: Future[Any], seconds: float, what: str) -> Any:
        try:
            return future.result(seconds)
        except FutureTimeoutError:
            raise StatusError(
                Status.DEADLINE_EXCEEDED,
                f"the {what} still waits in the queue; {what} again "
                f"{'with the same token and' if what == 'push' else 'with'} a longer deadline",
            ) from None
        except StatusError:
            raise
        except SparringError as error:
            raise StatusError(
                Status.FAILED_PRECONDITION, str(error), reason=f"{what}_failed"
            ) from error


def _gradients(given: TableGradients, num_ids: int, declared: TableDeclaration) -> Any:
    dim, num_bytes = declared.dim, len(given.gradients)
    if num_bytes != 4 * dim * num_ids:
        found = f"{num_bytes / 4 / num_ids:g}" if num_ids else f"{num_bytes} bytes"
        raise _wrong(
            f"push to table {given.table!r}: gradients of {num_ids:,} ids must be float32 with the dim "
            f"{dim} of the table, found {found}; send {4 * dim * num_ids:,} bytes"
        )
    gradients = _aligned(np.frombuffer(given.gradients, np.float32)).reshape(num_ids, dim)
    return gradients


def _aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copies the array if native code cannot read it at its address; messages are not aligned."""
    return np.require(array, None, ["C", "A"])


def _token(request: PushRequest) -> Token:
    if not _CLIENT.match(request.client) or not 1 <= request.sequence < 1 << 62:
        raise _wrong(
            "push: the token must consist of a client name of 1 to 64 letters, digits, '_' or '-' and "
            f"a number of at least 1, found {request.client!r} and {request.sequence}"
        )
    return Token(request.client, request.sequence)


def _wait(request: PushRequest) -> Wait:
    try:
        return Wait(request.wait)
    except ValueError as error:
        raise _wrong(
            f"push: {error}; the client is of a newer release than this server: upgrade the server"
        ) from None


def _hyper(given: TableGradients, declared: TableDeclaration) -> HyperParameters:
    """Returns the hyper-parameters of a push: the table's, except `lr`."""
    if given.update_method and given.update_method != declared.update_method:
        raise _wrong(
            f"push to table {given.table!r}: the update method is {given.update_method!r}, but the "
            f"service uses {declared.update_method!r} and stores its state; use that method, or change "
            "the declaration of the service"
        )
    if not given.hyper:
        return declared.hyper_parameters
    try:
        return _merged(
            given.hyper, declared.update_method, declared.hyper_parameters.model_dump_json()
        )
    except InvalidArgumentError as error:
        raise _wrong(f"push to table {given.table!r}: {error}") from None


def _wrong(text: str) -> StatusError:
    return StatusError(Status.INVALID_ARGUMENT, text, reason="push")


MAX_HYPER_BRACKETS = 64


@lru_cache(maxsize=256)
def _merged(given: str, method: str, declared: str) -> HyperParameters:
    from sparring.adapter import resolve_method

    # The JSON parser recurses on nested brackets, which hyper-parameters do not need.
    if given.count("[") + given.count("{") > MAX_HYPER_BRACKETS:
        raise InvalidArgumentError(
            "hyper-parameters must be a JSON mapping of names to values with at most "
            f'{MAX_HYPER_BRACKETS} brackets, found {given[:80]!r}; send one such as {{"lr": 0.1}}'
        )
    try:
        asked = json.loads(given)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise InvalidArgumentError(
            "hyper-parameters must be a JSON mapping of names to values, found "
            f'{given[:80]!r}; send one such as {{"lr": 0.1}}'
        )
    before = json.loads(declared)
    merged = parse_hyper(resolve_method(method), {**before, **asked})
    for name, value in merged.model_dump().items():
        if name != "lr" and value != before[name]:
            raise InvalidArgumentError(
                f"found the hyper-parameter {name}={value}, but the table uses {name}={before[name]}; a "
                "push can change only lr"
            )
    return merged
