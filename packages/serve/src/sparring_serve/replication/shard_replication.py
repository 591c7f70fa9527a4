"""Replication of one shard: runs a `Replica` with threads, the network and the store.

push ──► log, queue ──► replicate(): the thread of the call sends new records to the followers
thread "lease"      renews the lease, or watches the leader's
thread per follower catches up a follower that lags, and sends heartbeats
thread "reset"      loads the leader's snapshot on a follower
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

from sparring.errors import SnapshotError, SparringError, StorageIOError
from sparring_serve.client.failures import NOT_LEADER
from sparring_serve.client.transport import Outcome, Send, Transport
from sparring_serve.declaration import ReplicationConfig
from sparring_serve.parameters.push_log import PushLog
from sparring_serve.parameters.push_log_files import Base
from sparring_serve.replication.owner import Follower, FollowerLog, ReplicaPlace, suspend_clock
from sparring_serve.replication.records import ReadState, ReplicaOptions, StoreSteps
from sparring_serve.replication.replica import Replica
from sparring_serve.replication.store import CoordinationStore
from sparring_serve.service import decode_request
from sparring_serve.status import Status, StatusError
from sparring_serve.wire.fields import MessageError, decode, encode
from sparring_serve.wire.messages import ReplicateReply, ReplicateRequest

__all__ = ["ShardReplication"]

_log = logging.getLogger(__name__)

_HEARTBEATS_PER_LEASE = 10
_PAUSE_SECONDS = 0.02
_MAX_PUSH_BYTES = 48 << 20
"""A message to a follower contains records of up to 8 MiB before this push, and has at most 64 MiB."""
_MAX_NEW_EPOCHS = 1 << 20
"""Maximum number of leaders that a client knows and this replica does not."""
_CALL_LEASES = 0.5
"""Maximum time of a call to a follower, in leases."""


class ShardReplication:
    """Leader or follower of one shard, until `close`. All methods are thread-safe.

    Args:
        owner: Owner of the rows.
        log: Push log of this replica.
        lock: Lock of the order in which pushes are logged and queued.
        config: Settings.
        place: Place of this replica.
        transport: Connections to the other replicas.
        store: Store of the service; closed with this object.
    """

    def __init__(
        self,
        owner: Follower,
        log: PushLog,
        lock: threading.RLock,
        config: ReplicationConfig,
        place: ReplicaPlace,
        transport: Transport,
        store: CoordinationStore,
    ) -> None:
        self.config, self.place = config, place
        self._owner, self._log, self._transport, self._store = owner, log, transport, store
        self._lock = lock
        self._changed = threading.Condition(lock)
        options = ReplicaOptions(
            config.lease_seconds,
            waits_for_followers=config.acks == "follower",
            is_first=place.is_first,
        )
        log.is_strict = bool(place.others)
        log.reader.keeps_recent = bool(place.others)
        self.replica = Replica(
            place.address, place.others, FollowerLog(log, owner), options, suspend_clock
        )
        self._ready_epoch = 0
        """Epoch of this leader in which it has applied all records."""
        self._is_resetting = False
        self._links = {each: threading.Lock() for each in place.others}
        self._sent_at = dict.fromkeys(place.others, 0.0)
        self._stop = threading.Event()
        self._is_due = threading.Event()
        """Set if a follower joins, which the store must know soon."""
        self._last_failure = self._last_store_failure = ""
        self._noted = (0, False)
        """Epoch and role that the owner knows."""
        self._resetting: threading.Thread | None = None
        self._threads = [
            threading.Thread(target=self._watch, name="sparring-lease", daemon=True),
            *(
                threading.Thread(
                    target=self._follow_up, args=(each,), name="sparring-follower", daemon=True
                )
                for each in place.others
            ),
        ]

    def start(self) -> None:
        """Starts the threads."""
        for each in self._threads:
            each.start()

    def close(self) -> None:
        """Ends the threads. If this replica leads, a follower that has all records replaces it."""
        if self._stop.is_set():
            return
        replica = self.replica
        with self._lock:
            self._changed.wait_for(
                lambda: not (replica.is_leader and replica.lacking(self._log.position)),
                self.config.lease_seconds,
            )
            self._stop.set()
            self._is_due.set()
            self._changed.notify_all()
        for each in self._threads:
            each.join()
        if self._resetting is not None:
            # It replaces the log, which another process may open after this one.
            self._resetting.join()
        try:
            self._run(self.replica.resign())
        except SparringError as error:
            _log.warning("another replica leads when the lease has ended: %s", error)
        self._store.close()

    # -- for calls of clients

    @property
    def epoch(self) -> int:
        return self.replica.epoch

    @property
    def is_leader(self) -> bool:
        replica = self.replica
        return replica.serves() and self._ready_epoch == replica.epoch

    def check_leader(self, what: str, known_epoch: int = 0) -> int:
        """Returns the epoch of this leader.

        Args:
            what: Name of the call.
            known_epoch: Highest epoch that the caller knows.

        Raises:
            StatusError: This replica must not answer.
        """
        if known_epoch > self.replica.epoch:
            with self._lock:
                if known_epoch > self.replica.epoch + _MAX_NEW_EPOCHS:
                    raise StatusError(
                        Status.INVALID_ARGUMENT,
                        f"{what}: the epoch {known_epoch} is not of this service, whose epoch is "
                        f"{self.replica.epoch}; start the client again",
                        reason="epoch",
                    )
                self.replica.note_epoch(known_epoch)
        if not self.is_leader:
            raise self._not_leader(what)
        return self.replica.epoch

    def check_still_leader(self, what: str, epoch: int) -> None:
        """Raises `StatusError` unless this replica still is the leader of an epoch."""
        if self.replica.epoch != epoch or not self.is_leader:
            raise self._not_leader(what)

    def _not_leader(self, what: str) -> StatusError:
        leader = self.replica.leader
        where = f"call {leader}" if leader not in ("", self.place.address) else "retry soon"
        return StatusError(
            Status.UNAVAILABLE,
            f"{what}: {NOT_LEADER} of shard {self.place.shard + 1}, or has lost contact to the store: "
            f"{where}",
            reason="not_leader",
        )

    def check_size(self, num_bytes: int) -> None:
        """Raises `StatusError` if followers could not receive a push of this size."""
        if self.place.others and num_bytes > _MAX_PUSH_BYTES:
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"push: found {num_bytes:,} bytes for shard {self.place.shard + 1}, and the maximum of a "
                f"shard with followers is {_MAX_PUSH_BYTES:,}; split the push, or add shards",
                reason="max_bytes",
            )

    def check_followers(self) -> None:
        """Raises `StatusError` if pushes need a follower and there is none."""
        if self._needs_follower and self.config.without_follower == "fail":
            raise StatusError(
                Status.UNAVAILABLE,
                f"push: no follower of shard {self.place.shard + 1} is in sync, and "
                "parameters.replication.without_follower is fail; start another replica, or set it to "
                "flag",
                reason="no_follower",
            )

    @property
    def _needs_follower(self) -> bool:
        waits = self.config.acks == "follower" and bool(self.place.others)
        return waits and not self.replica.num_followers

    def replicate(self, epoch: int, position: int, seconds: float, what: str = "push") -> bool:
        """Waits until all followers in sync have the records up to a position.

        Args:
            epoch: Epoch of this leader when it wrote the record.
            position: Position of the record.
            seconds: Time until the deadline of the call.
            what: Name of the call.

        Returns:
            Whether at least one follower has the records; True if acknowledgements do not wait.

        Raises:
            StatusError: This replica is no longer the leader, or the time has passed.
        """
        if self.config.acks == "leader" or not self.place.others:
            with self._lock:
                self._changed.notify_all()
            return True
        end = time.monotonic() + seconds
        while True:
            with self._lock:
                self.check_still_leader(what, epoch)
                if self.replica.is_replicated(position):
                    is_alone = self._needs_follower
                    if is_alone and what == "push":
                        self.check_followers()
                    return not is_alone
                if time.monotonic() > end:
                    raise StatusError(
                        Status.DEADLINE_EXCEEDED,
                        f"the {what} still waits for a follower; {what} again with the same token",
                        reason="replication",
                    )
                lacking = self.replica.lacking(position)
                ends = [self.replica.end_of(each) for each in lacking]
                if len(lacking) > 1:
                    # Other threads send to the others, so that one that fails does not delay them.
                    self._changed.notify_all()
            free = next((each for each in lacking if self._links[each].acquire(blocking=False)), "")
            if free:
                self._exchange(free)
            with self._lock:
                is_same = ends == [self.replica.end_of(each) for each in lacking]
                if is_same and not self.replica.is_replicated(position):
                    # Another thread sends, or the follower does not reply.
                    self._changed.wait(_PAUSE_SECONDS)

    def gauges(self) -> dict[str, float]:
        return {
            "is_leader": float(self.is_leader),
            "leader_epoch": float(self.replica.epoch),
            "followers_in_sync": float(self.replica.num_followers if self.is_leader else 0),
            "lacks_follower": float(
                self.is_leader and bool(self.place.others) and not self.replica.num_followers
            ),
            "follower_lag_records": float(self.replica.lag() if self.is_leader else 0),
        }

    # -- the follower's side

    def answer(self, content: bytes) -> bytes:
        """Answers a ReplicateRequest of a leader."""
        given: ReplicateRequest = decode_request(ReplicateRequest, content)
        place = self.place
        if (given.shard, given.num_shards) != (place.shard, place.num_shards):
            raise StatusError(
                Status.FAILED_PRECONDITION,
                f"the call is for shard {given.shard + 1} of {given.num_shards}, but this is shard "
                f"{place.shard + 1} of {place.num_shards}; start all servers with the same `shards`",
                reason="other_shard",
            )
        with self._lock:
            if given.is_append and self.replica.epoch <= given.epoch:
                self._owner.adopt(given.incarnation, given.lost)
            reply = self.replica.replicate(given)
            if self.replica.resetting is not None and not self._is_resetting:
                self._is_resetting = True
                self._resetting = threading.Thread(
                    target=self._reset,
                    args=(self.replica.resetting, given.incarnation, given.lost),
                    name="sparring-follower-reset",
                    daemon=True,
                )
                self._resetting.start()
        return encode(reply)

    def _reset(self, request: ReplicateRequest, incarnation: int, lost: str) -> None:
        base = request.base or "no snapshot"
        _log.info("following %s: loading %s", request.leader, base)
        try:
            found = self._owner.base_of(request.base)
            if not found.is_same(Base(request.base, request.base_save, request.base_hash)):
                raise SnapshotError(
                    "it is another snapshot than that of the leader; give all replicas of the shard the "
                    "same parameters.folders"
                )
            self._owner.reset_rows(request.base)
            with self._lock:
                self._owner.adopt(incarnation, lost)
                self._log.reset(found, request.kept_from, request.epoch)
        except (SparringError, OSError) as error:
            _log.warning(
                "following %s: loading %s failed and is tried again: %s",
                request.leader, base, error,
            )  # fmt: skip
            self._stop.wait(self.config.lease_seconds)
            # The rows are lost, so this replica must not lead. The leader may have a newer snapshot now.
            with self._lock:
                self._log.epoch = -1
        with self._lock:
            self.replica.finish_reset()
            self._is_resetting = False

    # -- the leader's side

    def _follow_up(self, address: str) -> None:
        pause = self.config.lease_seconds / _HEARTBEATS_PER_LEASE
        has_advanced = True
        while not self._stop.is_set():
            with self._lock:
                left = self._sent_at[address] + pause - time.monotonic()
                lags = self.replica.is_leader and self.replica.lags(address)
                if left > 0 and not (lags and has_advanced):
                    # Other threads send the records of their own pushes.
                    self._changed.wait(left)
                    continue
            if self._links[address].acquire(timeout=pause):
                has_advanced = self._exchange(address)

    def _exchange(self, address: str) -> bool:
        """Sends records to a follower whose link this thread has locked, and releases the link.

        Returns:
            Whether the end of the follower's log has changed, so that more records can be sent.
        """
        try:
            self._sent_at[address] = time.monotonic()
            with self._lock:
                before = self.replica.end_of(address)
                request = self.replica.request_for(address)
            if request is None:
                return False
            seconds = max(0.2, _CALL_LEASES * self.config.lease_seconds)
            send = Send(address, "Replicate", encode(self._complete(request)), seconds)
            try:
                [outcome] = self._transport.exchange([send])
            except SparringError as error:  # of the settings of the client, such as its token
                outcome = Outcome(None, "UNAVAILABLE", str(error))
            reply = None
            if outcome.answer is None:
                self._note_failure(f"{address}: {outcome.status} {outcome.message}")
            else:
                reply = _reply(outcome.answer)
            with self._lock:
                if self.replica.take_reply(address, request, reply):
                    self._is_due.set()
                self._changed.notify_all()
                return self.replica.end_of(address) != before
        finally:
            self._links[address].release()

    def _complete(self, request: ReplicateRequest) -> ReplicateRequest:
        return replace(
            request,
            lost=self._owner.lost,
            incarnation=self._log.incarnation,
            shard=self.place.shard,
            num_shards=self.place.num_shards,
        )

    def _note_failure(self, why: str) -> None:
        if why != self._last_failure:
            _log.info("a follower did not reply: %s", why)
            self._last_failure = why

    # -- the lease

    def _watch(self) -> None:
        pause = self.config.lease_seconds / _HEARTBEATS_PER_LEASE
        while not self._stop.is_set():
            self._is_due.wait(pause)
            self._is_due.clear()
            if self._stop.is_set():
                return
            with self._lock:
                is_due = self.replica.is_renewal_due()
            if is_due:
                try:
                    self._tick()
                    self._last_store_failure = ""
                except SparringError as error:
                    if str(error) != self._last_store_failure:
                        _log.warning("%s", error)
                    self._last_store_failure = str(error)

    def _run(self, steps: StoreSteps) -> None:
        result: Any = None
        while True:
            with self._lock:
                try:
                    if isinstance(result, StorageIOError):
                        steps.throw(result)
                        raise AssertionError("the steps end with the error of the store")
                    asked = steps.send(result)
                except StopIteration:
                    break
            key = self.place.key
            try:
                result = (
                    self._store.read(key)
                    if isinstance(asked, ReadState)
                    else self._store.replace(key, asked.before, asked.after)
                )
            except StorageIOError as error:
                result = error

    def _tick(self) -> None:
        self._run(self.replica.tick())
        with self._lock:
            self._changed.notify_all()
        role = self.replica.epoch, self.replica.is_leader
        if role != self._noted:
            self._note_role()
            self._noted = role  # if the log could not be written, the next tick tries again

    def _note_role(self) -> None:
        with self._lock:
            epoch = self.replica.epoch
            if not self.replica.is_leader:
                _log.warning("following %s, epoch %d", self.replica.leader or "no leader", epoch)
                return
            why = ""
            if self.replica.found_no_state:
                why = "the coordination store had no value for this shard"
            elif self.replica.has_lost_log:
                why = "this leader has no push log, although it led before"
            elif self.config.acks == "leader" and self.replica.has_replaced:
                why = "the former leader failed, and parameters.replication.acks is leader"
            applied = self._owner.lead(why)
        # The lease is renewed in the meantime.
        applied.add_done_callback(lambda _: self._note_ready(epoch))

    def _note_ready(self, epoch: int) -> None:
        with self._lock:
            if not (self.replica.is_leader and self.replica.epoch == epoch):
                return
            self._ready_epoch = epoch
        _log.warning("leading shard %d, epoch %d", self.place.shard + 1, epoch)


def _reply(content: bytes) -> ReplicateReply | None:
    try:
        reply: ReplicateReply = decode(ReplicateReply, content)
    except MessageError as error:
        _log.warning("cannot read the reply of a follower: %s", error)
        return None
    return reply
