"""Saves and loads of all shards: the first shard coordinates the others.

    client ── Save(url) ──► shard 1 ── SavePart(asks) ──► all others      if one is missing: rejected
                               │  ◄── steps ──
                               ├── SavePart(token, step) ──► all others   each writes its part
                               └── its own part, then the manifest of all parts, which commits

The parts are written to the staging folder of the snapshot, like the parts of ranks:
docs/format/snapshot.md. If one shard fails, all fail and nothing is committed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from sparring import SaveResult, list_snapshots, open_snapshot
from sparring.adapter import Task
from sparring.errors import SnapshotError, SparringError
from sparring_serve.client.replicas import LeaderOrder
from sparring_serve.client.rounds import AT_THE_LEADER, ONE_RECONNECT, Rounds
from sparring_serve.client.transport import Outcome, Send, Transport, run_steps
from sparring_serve.parameters.allowed_folders import resolved_url, snapshot_url
from sparring_serve.parameters.push_log import PushLog
from sparring_serve.parameters.push_log_files import Base
from sparring_serve.parameters.push_queue import PushQueue
from sparring_serve.parameters.push_steps import REQUEST_SECONDS, describe_outcome
from sparring_serve.parameters.shard import ParameterShard
from sparring_serve.replication.shard_replication import ShardReplication
from sparring_serve.resizing.moves import Moves
from sparring_serve.service import decode_request
from sparring_serve.status import Status, StatusError
from sparring_serve.wire.fields import MessageError, decode, encode
from sparring_serve.wire.messages import (
    PartReply,
    PartRequest,
    SnapshotReply,
    SnapshotRequest,
    TableMessage,
)

__all__ = ["ShardSnapshots", "find_superseded"]

_POLL_SECONDS = 0.02


class ShardSnapshots:
    """Saves and loads of one server; on the first shard, of all servers.

    Args:
        shard: Tables of the shard.
        queue: Queue in which saves and loads are ordered among pushes.
        transport: Connections to the other shards.
        in_order: Locks the order of the queue, and returns the push log if there is one.
        moves: Moves of partitions, which must not happen at the same time.
    """

    def __init__(
        self,
        shard: ParameterShard,
        queue: PushQueue,
        transport: Transport,
        in_order: Callable[[], AbstractContextManager[PushLog | None]],
        moves: Moves,
    ) -> None:
        self._shard, self._queue, self._transport = shard, queue, transport
        self._in_order, self._moves = in_order, moves
        self.replication: ShardReplication | None = None
        self._one_at_a_time = threading.Lock()
        self._order = LeaderOrder()
        self._scheduled: list[int] = []
        """Steps of all shards at the last scheduled save."""

    # -- of all shards

    def save(self, content: bytes, seconds: float) -> bytes:
        """Answers a SnapshotRequest with a snapshot of all shards."""
        request: SnapshotRequest = decode_request(SnapshotRequest, content)
        deadline = time.monotonic() + seconds
        with self._alone(f"save of {request.url or 'all tables'}"):
            if request.url:
                self._url(request.url)  # reject it before any shard is called
            step = max(self._ask_steps(request.accepts_loss, seconds))
            url = self._url(request.url or f"step-{step:012d}")
            part = self._numbered(
                PartRequest(
                    url, token=secrets.token_hex(16), step=step, accepts_loss=request.accepts_loss
                )
            )
            return self._together("SavePart", part, self._save_part, "save", deadline)

    def save_scheduled(self, find_name: Callable[[int], str], seconds: float) -> str | None:
        """Saves all shards, unless nothing was pushed or loaded since the last call that saved.

        Args:
            find_name: Returns the name of the snapshot of a step.
            seconds: Time for which shards wait for each other.

        Returns:
            The URL of the snapshot; None if nothing was pushed or loaded.

        Raises:
            StatusError: The save failed, or another save or load is in progress.
        """
        deadline = time.monotonic() + seconds
        with self._alone("scheduled save"):
            steps = self._ask_steps(False, seconds)
            if steps == self._scheduled:
                return None
            step = max(steps)
            url = self._url(find_name(step))
            part = self._numbered(PartRequest(url, token=secrets.token_hex(16), step=step))
            self._together("SavePart", part, self._save_part, "save", deadline)
            self._scheduled = steps
            return url

    def _ask_steps(self, accepts_loss: bool, seconds: float) -> list[int]:
        """Returns the number of pushes of each shard, which confirms that it is ready to save."""
        self._check_complete(accepts_loss)
        asks = self._numbered(PartRequest(asks=True, accepts_loss=accepts_loss))
        asked = self._ask("SavePart", asks, "save", seconds)
        return [self._shard.steps, *(each.step for each in asked)]

    def load(self, content: bytes, seconds: float) -> bytes:
        """Answers a SnapshotRequest by loading a snapshot on all shards."""
        request: SnapshotRequest = decode_request(SnapshotRequest, content)
        deadline = time.monotonic() + seconds
        with self._alone(f"load of {request.url}"):
            url = self._url(request.url)
            with _reject_errors("load"):
                snapshot = open_snapshot(url)
            part = self._numbered(
                PartRequest(
                    url, step=snapshot.step, hash=snapshot.manifest_hash, tables=request.tables
                )
            )
            self._moves.check_idle(part.map_number)
            self._ask("LoadPart", replace(part, asks=True), "load", seconds)
            self._scheduled = []  # the same steps may now have other rows
            return self._together("LoadPart", part, self._load_part, "load", deadline)

    def _numbered(self, part: PartRequest) -> PartRequest:
        return replace(part, map_number=self._moves.map_number)

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        position = self._shard.position
        if position.shard:
            raise StatusError(
                Status.FAILED_PRECONDITION,
                f"{what}: this is shard {position.shard + 1} of {position.shards.num_shards}, but "
                f"the first shard coordinates it: call {position.shards.shards[0][0]}",
                reason="not_first",
            )
        self._check_leader(what)
        if not self._one_at_a_time.acquire(blocking=False):
            raise StatusError(
                Status.FAILED_PRECONDITION,
                f"{what}: another save or load is in progress; retry when it has ended",
                reason="busy",
            )
        try:
            self._moves.read_map()
            yield
        finally:
            self._one_at_a_time.release()

    def _check_leader(self, what: str) -> int:
        """Returns the epoch of this leader; 0 if the shard has no replicas."""
        return 0 if self.replication is None else self.replication.check_leader(what)

    def _sends(self, method: str, part: PartRequest, seconds: float) -> list[tuple[int, Send]]:
        """Creates the attempts for all other shards, at the replicas that replied last."""
        shards = self._shard.position.shards
        return [
            (
                shard,
                Send(
                    self._order.of(replicas, time.monotonic())[0],
                    method,
                    encode(_to(part, shard, shards.num_shards)),
                    seconds,
                ),
            )
            for shard, replicas in enumerate(shards.shards)
            if shard
        ]

    def _ask(self, method: str, part: PartRequest, what: str, seconds: float) -> list[PartReply]:
        """Returns the replies of all other shards, which confirm that they are ready.

        Args:
            method: Method to call.
            part: Work to prepare.
            what: Name of the operation, for messages.
            seconds: Time for which the caller waits.

        Raises:
            StatusError: A shard is missing or not ready; nothing was changed.
        """
        # Leave time to report a missing shard before the caller's deadline.
        seconds = min(REQUEST_SECONDS, seconds / 4)
        sends = self._sends(method, part, seconds)
        answers: list[PartReply] = []

        def accept(_: int, content: bytes) -> None:
            answers.append(decode(PartReply, content))

        shards = self._shard.position.shards.shards
        policy = AT_THE_LEADER if any(len(each) > 1 for each in shards) else ONE_RECONNECT
        policy = replace(policy, raises_refusals=False)
        rounds = Rounds(method, [(shard, send.request) for shard, send in sends], accept, policy)
        end = time.monotonic() + 2 * seconds
        run_steps(rounds.run(shards, self._order, time.monotonic, end, seconds), self._transport)
        for (shard, send), outcome in zip(sends, rounds.outcomes(), strict=True):
            if outcome is not None:
                raise self._missing(shard, send, outcome, f"{what}: nothing was changed")
        return answers

    def _together(
        self,
        method: str,
        part: PartRequest,
        own: Callable[[PartRequest, float], PartReply],
        what: str,
        deadline: float,
    ) -> bytes:
        """Processes all parts concurrently; the first failure fails the others."""
        seconds = max(0.001, deadline - time.monotonic())
        sends = self._sends(method, part, seconds)
        answers: list[Future[PartReply]] = []
        with ThreadPoolExecutor(len(sends) + 1, "sparring-snapshot-shards") as threads:
            answers.append(threads.submit(own, part, seconds))
            answers += [
                threads.submit(self._call, shard, send, f"{what} of {part.url}")
                for shard, send in sends
            ]
            wait(answers, return_when=FIRST_EXCEPTION)
            failure = next(filter(None, (_failure(each) for each in answers)), None)
            # The part of this shard may not have started yet.
            while failure is not None and wait(answers[:1], _POLL_SECONDS).not_done:
                self._shard.fail_save(SnapshotError(str(failure)))
        if failure is not None:
            raise failure
        return encode(_answer(part, [each.result() for each in answers]))

    def _call(self, shard: int, send: Send, what: str) -> PartReply:
        [outcome] = self._transport.exchange([send])
        if outcome.answer is not None:
            try:
                answer: PartReply = decode(PartReply, outcome.answer)
                return answer
            except MessageError as error:
                outcome = Outcome(None, "DATA_LOSS", str(error))
        raise self._missing(shard, send, outcome, what)

    def _missing(self, shard: int, send: Send, outcome: Outcome, what: str) -> StatusError:
        return StatusError(
            Status.FAILED_PRECONDITION,
            f"{what}: shard {shard + 1} of {self._shard.position.shards.num_shards} at {send.address} "
            f"failed: {describe_outcome(outcome, send.timeout_seconds)}; check this server",
            reason="shard_missing",
        )

    # -- of this shard

    def save_part(self, content: bytes, seconds: float) -> bytes:
        """Answers a PartRequest of the first shard."""
        part: PartRequest = decode_request(PartRequest, content)
        self._check_meant(part)
        self._check_leader("save")
        if part.asks:
            self._check_complete(part.accepts_loss)
            return encode(PartReply(self._shard.steps, incarnation=self._shard.incarnation))
        return encode(self._save_part(part, seconds))

    def load_part(self, content: bytes, seconds: float) -> bytes:
        """Answers a PartRequest of the first shard."""
        part: PartRequest = decode_request(PartRequest, content)
        self._check_meant(part)
        self._check_leader("load")
        if not part.asks:
            return encode(self._load_part(part, seconds))
        self._moves.check_idle(part.map_number)
        with _reject_errors("load"):
            found = open_snapshot(self._url(part.url)).manifest_hash
        if found != part.hash:
            raise StatusError(
                Status.FAILED_PRECONDITION,
                f"load of {part.url}: its manifest has the hash {found} here, but {part.hash} on the "
                "first shard; use the same file system on all shards",
                reason="other_snapshot",
            )
        return encode(PartReply(self._shard.steps, hash=found))

    def _save_part(self, part: PartRequest, seconds: float) -> PartReply:
        url = self._url(part.url)
        with _reject_errors("save"):
            with self._in_order() as log:
                self._moves.check_idle(part.map_number)
                epoch = self._check_leader("save")
                if log is not None and log.partitions is not None:
                    log.partitions = self._moves.partitions()
                base = Base(url, save=part.token)  # its manifest does not exist yet
                segment = 0 if log is None else log.begin(base, is_record=True)
                position = 0 if log is None else log.position
                replicated: Future[None] = Future()

                def begin_save() -> Task[SaveResult]:
                    # A replica that becomes the leader, or starts again with this snapshot, continues
                    # from its record. Therefore, the snapshot must not be complete before.
                    replicated.result()
                    return self._shard.begin_save(url, part.token, part.step, seconds)

                begun = self._queue.call(begin_save)
            try:
                self._replicate(epoch, position, seconds, "save")
            except BaseException as error:
                replicated.set_exception(error)
                raise
            replicated.set_result(None)
            saved = begun.result(seconds).result(seconds)
            if part.accepts_loss and self._shard.lost:
                self._shard.settle()
            with self._in_order() as log:
                if log is not None and self._is_still_leader(epoch):
                    log.commit(segment)
        return PartReply(self._shard.steps, _rows(saved.rows), incarnation=self._shard.incarnation)

    def _check_complete(self, accepts_loss: bool) -> None:
        position, lost = self._shard.position, self._shard.lost
        self._moves.check_idle(0)
        if lost and not accepts_loss:
            raise StatusError(
                Status.FAILED_PRECONDITION,
                f"save: nothing was changed: shard {position.shard + 1} of "
                f"{position.shards.num_shards} may have lost acknowledged pushes: {lost}. Load a "
                "snapshot (ParameterClient.load) so that all shards have the same pushes, or "
                "accept the loss (ParameterClient.save(accept_loss=True))",
                reason="pushes_lost",
            )

    def _replicate(self, epoch: int, position: int, seconds: float, what: str) -> None:
        if self.replication is not None:
            self.replication.replicate(epoch, position, seconds, what)

    def _is_still_leader(self, epoch: int) -> bool:
        replication = self.replication
        return replication is None or (replication.is_leader and replication.epoch == epoch)

    def _load_part(self, part: PartRequest, seconds: float) -> PartReply:
        url = self._url(part.url)
        with _reject_errors("load"):
            is_all = not part.tables or set(part.tables) == set(self._shard.config.tables)
            has_followers = self.replication is not None and bool(self.replication.place.others)
            if has_followers and not is_all:
                raise StatusError(
                    Status.FAILED_PRECONDITION,
                    f"load of {part.url}: a shard with followers loads all tables of a snapshot; omit "
                    "tables, or start one replica per shard for this load",
                    reason="some_tables",
                )
            superseded = find_superseded(self._shard.config.folders[0], url)
            with self._in_order() as log:
                self._moves.check_idle(part.map_number)
                epoch, segment, position = self._check_leader("load"), 0, 0
                if log is not None:
                    if log.partitions is not None:
                        log.partitions = self._moves.partitions()
                    base = self._shard.base_of(url) if is_all else None
                    segment = log.begin(base, is_load=is_all, is_record=is_all)
                    position = log.position
                    if not is_all:
                        log.skip("some of the tables were loaded from another snapshot")
                waiting = self._queue.call(lambda: self._shard.load(url, part.tables))
            self._replicate(epoch, position, seconds, "load")
            loaded = waiting.result(seconds)
            if is_all:
                self._shard.settle()
                with self._in_order() as log:
                    if log is not None and self._is_still_leader(epoch):
                        if log.superseded != superseded:
                            log.superseded = superseded
                            log.begin(None)
                        log.commit(segment)
        return PartReply(self._shard.steps, _rows(loaded.rows), part.hash)

    def _check_meant(self, part: PartRequest) -> None:
        self._moves.refresh(part.map_number)
        position = self._shard.position
        found = (position.shard, position.shards.num_shards)
        if (part.shard, part.num_shards) != found:
            raise StatusError(
                Status.FAILED_PRECONDITION,
                f"the call is for shard {part.shard + 1} of {part.num_shards}, but this is shard "
                f"{found[0] + 1} of {found[1]}; start all servers with the same `shards`",
                reason="other_shard",
            )

    def _url(self, url: str) -> str:
        return snapshot_url(url, self._shard.config.folders)


def find_superseded(folder: str, loaded: str) -> str:
    """Returns the newest snapshot of a folder; empty if it is the loaded one, or if there is none."""
    newest = (list_snapshots(folder) or [""])[-1]
    return "" if resolved_url(newest) == resolved_url(loaded) else newest


def _failure(part: Future[PartReply]) -> BaseException | None:
    return part.exception() if part.done() else None


def _to(part: PartRequest, shard: int, num_shards: int) -> PartRequest:
    return replace(part, shard=shard, num_shards=num_shards)


def _rows(rows: Any) -> tuple[TableMessage, ...]:
    return tuple(TableMessage(name, rows=count) for name, count in rows.items())


def _answer(part: PartRequest, answers: Sequence[PartReply]) -> SnapshotReply:
    rows: Counter[str] = Counter()
    for answer in answers:
        rows.update({each.name: each.rows for each in answer.rows})
    return SnapshotReply(part.url, part.step, _rows(rows))


@contextmanager
def _reject_errors(what: str) -> Iterator[None]:
    """Converts errors to `StatusError`."""
    try:
        yield
    except StatusError:
        raise
    except FutureTimeoutError:
        raise StatusError(
            Status.DEADLINE_EXCEEDED, f"the {what} exceeded the deadline of the call; increase it"
        ) from None
    except SparringError as error:
        raise StatusError(
            Status.FAILED_PRECONDITION, str(error), reason=f"{what}_failed"
        ) from error
