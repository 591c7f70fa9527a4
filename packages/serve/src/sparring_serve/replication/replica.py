"""Decisions of one replica of a shard: who leads, which replicas are in sync, and what is acknowledged.

This module accesses neither the network nor the store nor a clock of its own. `reliability.
follower_crashes` therefore runs the same code in a simulation that stops it at any point.

    leader ── ReplicateRequest(epoch, position, records) ──► follower: appends, applies
           ◄── ReplicateReply(epoch, position) ──
    store: one value per shard, `ShardState`, that is changed only by comparison with the value before

Invariants:

1. An epoch has at most one leader, because a claim replaces the value that the claimant has read.
2. A leader answers only before the end of its lease on its own clock. Another replica claims the
   leadership only after it has seen the same value for longer than a lease, or if the leader has
   stopped answering and recorded that in the store.
3. Each replica in `ShardState.in_sync` has every acknowledged record. A leader waits for a follower
   before it adds it, and removes it from the store before it stops waiting.
4. A follower discards its log only after it was removed from `in_sync`.
5. Logs of two replicas with the same epoch and the same position are equal.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from sparring.errors import StorageIOError
from sparring_serve.replication.records import (
    LostLogError,
    ReadState,
    ReplaceState,
    ReplicaOptions,
    ReplicatedLog,
    ShardState,
    StoreSteps,
)
from sparring_serve.wire.messages import LogPosition, ReplicateReply, ReplicateRequest

__all__ = ["Replica"]

_CLAIM_LEASES = 1.1
"""Leases for which a follower sees the same value before it claims the leadership. The part above 1
allows for clocks with different rates."""


_NO_END = LogPosition(-1, 0)
_MAX_LAG = 64
"""Records that a follower may lack when acknowledgements begin to wait for it. If they never wait, it may
also join with so many missing."""


class _Link(Enum):
    UNKNOWN = "unknown"
    """The end of the follower's log is unknown."""
    ASKED = "asked"
    """The follower has reported its end and does not follow yet."""
    FOLLOWING = "following"


@dataclass(slots=True)
class _Follower:
    state: _Link = _Link.UNKNOWN
    session: int = 0
    end: LogPosition = _NO_END
    is_loading: bool = False
    replied_at: float = 0.0
    sent: ReplicateRequest | None = None
    """The last request, unless its reply has arrived."""
    is_required: bool = False
    """Whether acknowledgements wait for it: while it is in `in_sync`, and shortly before."""


@dataclass(slots=True)
class _Seen:
    value: bytes | None = None
    since: float | None = None


class Replica:
    """One replica of a shard. The owner serializes all calls, and all parts of `tick` between two
    operations on the store.

    Args:
        address: Address of this replica.
        others: Addresses of the other replicas.
        log: Log of this replica.
        options: Settings.
        clock: Returns the time in seconds; it must continue while the process is stopped.
    """

    def __init__(
        self,
        address: str,
        others: Sequence[str],
        log: ReplicatedLog,
        options: ReplicaOptions,
        clock: Callable[[], float],
    ) -> None:
        self.address, self.log, self.options = address, log, options
        self._clock = clock
        self.epoch = max(log.end.epoch, 0)
        """Highest epoch that this replica knows."""
        self.leader = ""
        """Address of the leader of that epoch; empty if it is unknown."""
        self.is_leader = False
        self.resetting: ReplicateRequest | None = None
        """The owner loads this snapshot, and calls `finish_reset`."""
        self.found_no_state = False
        """Whether this leader found no value in the store although its log had followed a leader."""
        self.has_replaced = False
        """Whether this leader replaced another replica that failed."""
        self._leads_again_at = float("-inf")
        """Time until which other replicas claim first, because this log could not be written."""
        self.has_lost_log = False
        """Whether this leader has no log although it led before."""
        self._lease_end = 0.0
        self._state: ShardState | None = None
        """Value that this leader wrote last."""
        self._is_state_known = False
        self._seen = _Seen()
        self._is_following = False
        self._session = _new_session()
        self._before = LogPosition(-1, 0)
        """End of the log when this leader began its epoch."""
        self._followers = {each: _Follower() for each in others}
        self._acknowledged = 0
        """Highest position that a client may know to be replicated."""

    # -- for calls of clients

    def serves(self) -> bool:
        """Returns whether this replica may answer clients now. Call it again after the work."""
        return self.is_leader and self._clock() < self._lease_end

    def note_epoch(self, epoch: int) -> None:
        """Takes an epoch that a client or another replica knows; a leader of a lower epoch stops."""
        if epoch > self.epoch:
            self._follow(epoch, "")

    @property
    def num_followers(self) -> int:
        """Number of followers in sync according to the store, so that they may replace this leader."""
        return 0 if self._state is None else len(self._state.in_sync) - 1

    def lacking(self, position: int) -> list[str]:
        """Returns the followers in sync that do not have the records up to a position."""
        return [
            address
            for address, each in self._followers.items()
            if each.is_required
            and not (each.state is _Link.FOLLOWING and each.end.position >= position)
        ]

    def end_of(self, address: str) -> LogPosition:
        """Returns the end of a follower's log according to its last reply."""
        return self._followers[address].end

    def is_replicated(self, position: int) -> bool:
        """Returns whether all followers in sync have the records up to a position."""
        is_replicated = not self.lacking(position)
        if is_replicated:
            self._acknowledged = max(self._acknowledged, position)
        return is_replicated

    def lag(self) -> int:
        """Returns the number of records that the slowest follower of this leader does not have."""
        ends = [each.end.position for each in self._followers.values()]
        return max((self.log.end.position - each for each in ends), default=0)

    def lags(self, address: str) -> bool:
        """Returns whether there are records to send to a follower now."""
        each = self._followers[address]
        return (
            self.is_leader
            and not each.is_loading
            and each.state is not _Link.UNKNOWN
            and (each.end.position < self.log.end.position or each.end.epoch != self.epoch)
            and self._continues(each.end)
        )

    # -- the store

    def tick(self) -> StoreSteps:
        """Renews the lease, changes the replicas in sync, or claims the leadership.

        Call it every tenth of a lease.
        """
        if self.is_leader:
            yield from self._renew()
        else:
            yield from self._watch()

    def resign(self) -> StoreSteps:
        """Ends the leadership, so that a follower that has all records may claim it at once. Call it
        instead of `tick` when this replica ends."""
        before = self._state
        if not self.is_leader or before is None or not self._is_state_known:
            return
        lacking = self.lacking(self.log.end.position)
        complete = tuple(each for each in before.in_sync if each not in lacking)
        self._follow(self.epoch, "")
        if len(complete) > 1:
            after = replace(before, in_sync=complete, has_ended=True)
            yield ReplaceState(before.encode(), after.encode())

    def is_renewal_due(self) -> bool:
        """Returns whether a leader must call `tick` now: at a third of the lease, or if the replicas
        in sync change."""
        if not self.is_leader or self._state is None or not self._is_state_known:
            return True
        elapsed = self._clock() - (self._lease_end - self.options.lease_seconds)
        return 3 * elapsed >= self.options.lease_seconds or self._in_sync() != self._state.in_sync

    def _renew(self) -> StoreSteps:
        epoch, began = self.epoch, self._clock()
        if not self._is_state_known:
            # The result of the last change is unknown: read it.
            found = yield ReadState()
            if not self._is_leader_of(epoch):
                return
            if found is not None:
                assert isinstance(found, bytes)
                state = ShardState.decode(found)
                if (state.epoch, state.leader) != (epoch, self.address):
                    self._follow(max(state.epoch, epoch + 1), state.leader)
                    return
                self._state = state
            self._is_state_known = True
        before = self._state
        assert before is not None
        self._require(before.in_sync)
        after = replace(before, in_sync=self._in_sync(), renewal=before.renewal + 1)
        self._is_state_known = False
        self._require(after.in_sync)
        is_replaced = yield ReplaceState(before.encode(), after.encode())
        if not self._is_leader_of(epoch):
            return
        if not is_replaced:
            found = yield ReadState()
            if not self._is_leader_of(epoch):
                return
            if found is not None:
                assert isinstance(found, bytes)
                state = ShardState.decode(found)
                if (state.epoch, state.leader) != (epoch, self.address):
                    self._follow(max(state.epoch, epoch + 1), state.leader)
                return
            # The store has lost the value. A leader that may still answer restores it.
            if self._clock() >= self._lease_end:
                self._follow(epoch, "")
                return
            is_replaced = yield ReplaceState(None, after.encode())
            if not is_replaced or not self._is_leader_of(epoch):
                return
        self._state, self._is_state_known = after, True
        self._lease_end = began + self.options.lease_seconds
        for address, each in self._followers.items():
            # Only after the store has removed it do acknowledgements stop waiting for it.
            each.is_required = address in after.in_sync or self._is_joining(each)

    def _is_leader_of(self, epoch: int) -> bool:
        return self.is_leader and self.epoch == epoch

    def _require(self, in_sync: Sequence[str]) -> None:
        for address in in_sync:
            if address in self._followers:
                self._followers[address].is_required = True

    def _in_sync(self) -> tuple[str, ...]:
        """Returns the replicas in sync according to their last replies."""
        assert self._state is not None
        now, before = self._clock(), self._state.in_sync
        found = [
            address
            for address, each in self._followers.items()
            if self._is_alive(each, now)
            and (self._remains(each) if address in before else self._joins(each))
        ]
        return (self.address, *found)

    def _remains(self, each: _Follower) -> bool:
        is_other = each.state is _Link.ASKED and not self._continues(each.end)
        return not is_other and not each.is_loading

    def _joins(self, each: _Follower) -> bool:
        """Returns whether a follower has every record that may have been acknowledged."""
        if not self.options.waits_for_followers:
            return self._is_close(each)
        return each.state is _Link.FOLLOWING and each.end.position >= self._acknowledged

    def _is_joining(self, each: _Follower) -> bool:
        """Returns whether acknowledgements must wait for a follower that is not in sync. Otherwise, they
        could always be ahead of it, and it would never join."""
        waits = self.options.waits_for_followers
        return waits and self._is_close(each) and self._is_alive(each, self._clock())

    def _is_close(self, each: _Follower) -> bool:
        least = self.log.end.position - _MAX_LAG
        return each.state is _Link.FOLLOWING and each.end.position >= least

    def _is_alive(self, each: _Follower, now: float) -> bool:
        return now - each.replied_at <= self.options.lease_seconds / 2

    def _watch(self) -> StoreSteps:
        value = yield ReadState()
        assert value is None or isinstance(value, bytes)
        now = self._clock()
        if value != self._seen.value or self._seen.since is None:
            self._seen = _Seen(value, now)
        assert self._seen.since is not None
        if value is None:
            if self.options.is_first and now - self._seen.since >= self.options.lease_seconds / 2:
                state = ShardState(self.epoch + 1, self.address, (self.address,))
                yield from self._claim(None, state)
            return
        state = ShardState.decode(value)
        if state.epoch > self.epoch or (state.epoch == self.epoch and not self.leader):
            if state.leader != self.address:
                self._follow(state.epoch, state.leader)
            else:
                self.epoch = max(self.epoch, state.epoch)
        if self.address not in state.in_sync or self.resetting is not None:
            return
        if self.log.end.epoch < 1 and state.in_sync != (self.address,):
            return  # this log is empty or has lost records, and another replica may have them
        if now < self._leads_again_at:
            return
        # A process that was the leader before it was restarted needs not wait for its own lease.
        is_expired = now - self._seen.since >= _CLAIM_LEASES * self.options.lease_seconds
        if is_expired or state.has_ended or state.leader == self.address:
            in_sync = tuple(
                each for each in state.in_sync if each not in (state.leader, self.address)
            )
            epoch = max(state.epoch, self.epoch) + 1
            state = ShardState(epoch, self.address, (self.address, *in_sync))
            yield from self._claim(value, state)

    def _claim(self, before: bytes | None, state: ShardState) -> StoreSteps:
        began = self._clock()
        if not (yield ReplaceState(before, state.encode())):
            return
        if self.resetting is not None or self.epoch >= state.epoch:
            return  # a newer leader was heard of in the meantime
        now, end = self._clock(), self.log.end
        try:
            self.log.begin_epoch(state.epoch)
        except StorageIOError:
            self._leads_again_at = now + 2 * _CLAIM_LEASES * self.options.lease_seconds
            raise
        last = None if before is None else ShardState.decode(before)
        self.found_no_state = last is None and end.epoch > 0
        self.has_replaced = last is not None and last.leader != self.address and not last.has_ended
        # A leader that renewed its lease had a log.
        self.has_lost_log = end.epoch == 0 and last is not None and last.renewal > 0
        self._before = end
        self.epoch, self.leader, self.is_leader = state.epoch, self.address, True
        self._state, self._is_state_known = state, True
        self._lease_end = began + self.options.lease_seconds
        self._is_following, self._session = False, _new_session()
        for address in self._followers:
            self._followers[address] = _Follower(
                replied_at=now, is_required=address in state.in_sync
            )
        self._acknowledged = self.log.end.position

    def _follow(self, epoch: int, leader: str) -> None:
        if epoch > self.epoch or self.is_leader:
            self._is_following, self._session = False, _new_session()
        if self.is_leader:
            self._seen = _Seen()
        self.epoch, self.leader, self.is_leader = max(epoch, self.epoch), leader, False

    # -- the leader's side of replication

    def request_for(self, address: str) -> ReplicateRequest | None:
        """Returns the next message to a follower; an empty one if there is nothing to send. None if
        this replica does not lead."""
        if not self.is_leader:
            return None
        each = self._followers[address]
        each.sent = self._request(address, each)
        return each.sent

    def _request(self, address: str, each: _Follower) -> ReplicateRequest:
        base, kept_from = self.log.base
        request = ReplicateRequest(
            self.epoch, self.address, each.session, after=each.end, kept_from=kept_from
        )
        if each.state is _Link.UNKNOWN or each.is_loading:
            return request
        if self._continues(each.end):
            try:
                records = tuple(self.log.read(each.end.position))
            except LostLogError:
                each.state = _Link.UNKNOWN
                return request
            return replace(request, is_append=True, records=records)
        each.state = _Link.ASKED
        assert self._state is not None
        if each.is_required or address in self._state.in_sync or not self._is_state_known:
            return request  # it must be removed from the store before it discards its log
        return replace(
            request, is_reset=True, base=base.url, base_save=base.save, base_hash=base.hash
        )

    def _continues(self, end: LogPosition) -> bool:
        """Returns whether a follower's log is a beginning of this log."""
        if end.position < self.log.base[1]:
            return False
        if end.epoch == self.epoch:
            return end.position <= self.log.end.position
        return end.epoch == self._before.epoch > 0 and end.position <= self._before.position

    def take_reply(
        self, address: str, request: ReplicateRequest, reply: ReplicateReply | None
    ) -> bool:
        """Takes the reply to a request; None if there was none. Returns whether the follower joins, so
        that `tick` should be called soon."""
        if reply is None:
            return False
        self.note_epoch(reply.epoch)
        each = self._followers[address]
        if each.sent is not request or not self._is_leader_of(request.epoch):
            return False  # of an earlier request
        each.sent = None
        if not request.records or reply.end != request.after or reply.session != request.session:
            # A follower that cannot append, for example because its disk is full, is not in sync.
            each.replied_at = self._clock()
        is_following = reply.end.epoch == self.epoch and not reply.is_loading
        if reply.session != each.session:
            each.session, each.end = reply.session, reply.end
            each.state = _Link.FOLLOWING if is_following and request.is_append else _Link.ASKED
        elif reply.end.position >= each.end.position or reply.end.epoch != each.end.epoch:
            each.end = reply.end
            if is_following and request.is_append:
                each.state = _Link.FOLLOWING
            elif each.state is _Link.UNKNOWN:
                each.state = _Link.ASKED
        each.is_loading = reply.is_loading
        if each.is_required or not self._is_joining(each):
            return False
        each.is_required = True
        return True

    # -- the follower's side

    def replicate(self, request: ReplicateRequest) -> ReplicateReply:
        """Answers a request of a leader. Appended records are in the log when this returns."""
        if request.epoch < self.epoch or (self.is_leader and request.epoch == self.epoch):
            return self._reply()
        if request.epoch > self.epoch or self.leader != request.leader:
            self._follow(request.epoch, request.leader)
        if request.session != self._session or self.resetting is not None:
            return self._reply()
        if request.is_reset:
            self._is_following = False
            self.resetting = request
        elif request.is_append:
            self._append(request)
        return self._reply()

    def _append(self, request: ReplicateRequest) -> None:
        end = self.log.end
        if not self._is_following:
            if request.after != end:
                return
            if end.epoch != request.epoch:
                self.log.begin_epoch(request.epoch)
            self._is_following, self._session = True, _new_session()
        if request.after.position > end.position:
            return
        self.log.append(request.records[end.position - request.after.position :])
        if request.kept_from > self.log.base[1]:
            self.log.drop_before(request.kept_from)

    def finish_reset(self) -> None:
        """Called when the rows and the log of `resetting` have been loaded; the log then ends at its
        position, with its epoch."""
        self.resetting, self._session = None, _new_session()

    def _reply(self) -> ReplicateReply:
        return ReplicateReply(self.epoch, self._session, self.log.end, self.resetting is not None)


def _new_session() -> int:
    return secrets.randbits(60) + 1
