"""Moves partitions out of and into one server of a parameter service, while it answers calls.

    source                                  target
    BEGIN ────────────────────────────────► drops rows of an earlier attempt
    ROWS  all rows ───────────────────────► writes them; it does not answer for them yet
    SYNC  ────────────────────────────────► waits until the rows are on its disk
    ROWS  rows that changed ──────────────► writes them
    stops accepting pushes to the partitions
    ROWS  the last changes ───────────────► writes them
    READY pushes that were applied ───────► keeps them
    replaces the shard map in the store     ◄── this decides: before, the source owns the partitions,
    LEAVE erases the rows                       afterwards the target
          reads the map ──────────────────► OWN answers for the partitions

Until the map is replaced, the source can cancel: it accepts pushes again, and the target drops the rows.
A server that restarts replays these records from its push log and reads the map.

The file is long because the source and the target share the locks and the map.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts import NUM_PARTITIONS, partition
from sparring.errors import SparringError, StorageIOError
from sparring_serve.client.transport import Send, Transport
from sparring_serve.parameters.push_log import PushLog
from sparring_serve.parameters.push_queue import PushQueue
from sparring_serve.parameters.shard import Gradients, ParameterShard
from sparring_serve.resizing.map_store import MapStore
from sparring_serve.resizing.shard_rows import Incoming
from sparring_serve.service import LookupService, ShardPosition, decode_request
from sparring_serve.status import Status, StatusError
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import MovedPart, MoveReply, MoveRequest, MoveStage

__all__ = ["Moves"]

_log = logging.getLogger(__name__)

_FEW_KEYS = 256
"""Number of changed keys that are sent after pushes stopped."""
_MAX_ROUNDS = 8
_PART_SECONDS = 10.0
_CLOSED_SECONDS = 0.5
"""Maximum time for which a push waits in the server for the end of a move. Then the client repeats it."""

Mask = npt.NDArray[np.bool_]


class Moves:
    """Ownership of partitions of one server. All methods are thread-safe.

    Args:
        shard: Tables of the shard.
        lookups: Service whose position follows the shard map.
        queue: Queue of pushes.
        transport: Connections to the other shards.
        in_order: Locks the order of the queue, and returns the push log if there is one.
        lock: Lock of `in_order`.
        store: The shard map of the service; None if the service cannot be resized.
    """

    def __init__(
        self,
        shard: ParameterShard,
        lookups: LookupService,
        queue: PushQueue,
        transport: Transport,
        in_order: Callable[[], AbstractContextManager[PushLog | None]],
        lock: threading.RLock,
        store: MapStore | None,
    ) -> None:
        self._shard, self._lookups, self._queue = shard, lookups, queue
        self._transport, self._in_order, self._store = transport, in_order, store
        self._rows = shard.moved
        self._map = shard.position.shards
        self._min_number = 0
        """Pushes that were divided by an older map are rejected."""
        self._closed: Mask = np.zeros(NUM_PARTITIONS, np.bool_)
        """Partitions whose pushes have to wait."""
        self._left: Mask = np.zeros(NUM_PARTITIONS, np.bool_)
        """Partitions that moved to other shards, and whose rows have not been erased yet."""
        self._opened = threading.Condition(lock)
        self._adopting = threading.RLock()
        self._erasing = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._one_part = threading.Lock()
        """Locked until a received part is applied, so that the next one is checked afterwards."""

    # -- for pushes

    def check(self, map_number: int, pushed: Sequence[Gradients] = ()) -> None:
        """Checks that a push was divided by a map that is still correct. The caller has the lock of the
        queue's order.

        Raises:
            StatusError: The client must use the attached map, or wait until a move has ended.
        """
        if self._store is None:
            return
        if map_number < self._min_number:
            raise self._moved(f"the call uses shard map {map_number}, and a newer one is in use")
        found = [partition(each.ids) for each in pushed]
        if not found:
            return
        # Waiting releases the lock, so all tables are checked after it.
        partitions = np.concatenate(found)
        if not self._opened.wait_for(lambda: not self._closed[partitions].any(), _CLOSED_SECONDS):
            raise StatusError(
                Status.UNAVAILABLE,
                "some of the keys are moving to another shard; push again",
                reason="moving",
            )
        if map_number < self._min_number or not self._rows.owned[partitions].all():
            raise self._moved("some of the keys belong to another shard")

    def _moved(self, why: str) -> StatusError:
        return StatusError(
            Status.FAILED_PRECONDITION,
            f"{why}; use the attached shard map",
            reason="moved",
            shard_map=self._map.to_bytes(),
        )

    def refresh(self, map_number: int) -> None:
        """Reads the shard map if a caller knows a newer one."""
        if self._store is not None and map_number > self._map.number:
            self.read_map()

    def check_idle(self, map_number: int) -> None:
        """Checks that no partition is moving, before the shard saves or loads.

        Raises:
            StatusError: A move is in progress, or the shards know different maps.
        """
        if self._store is None:
            return
        is_moving = self._one_at_a_time.locked() or self._one_part.locked()
        is_moving |= bool((self._closed | self._left).any())
        if is_moving or self._rows.incoming is not None or map_number not in (0, self._map.number):
            raise StatusError(
                Status.FAILED_PRECONDITION,
                "a resize is moving rows of this shard; save or load again when it has ended (if it was "
                "interrupted, run sparring resize again)",
                reason="resizing",
            )

    @property
    def map_number(self) -> int:
        """Version of the shard map that this server uses."""
        return self._map.number

    # -- the shard map

    def read_map(self) -> None:
        """Reads the shard map and takes or gives up partitions accordingly.

        Raises:
            StatusError: The store cannot be reached.
            StorageIOError: The push log failed.
        """
        found = None
        if self._store is not None:
            with _unavailable():
                found = self._store.read()
        if found is not None:
            self.adopt(found)

    def adopt(self, shards: ShardReplicas) -> None:
        """Uses a newer shard map."""
        with self._adopting:
            if shards.number > self._map.number:
                self._adopt(shards)

    def partitions(self) -> list[tuple[int, int]]:
        """Returns the ranges of partitions of this shard."""
        return _ranges(self._rows.owned)

    def replay(self, content: bytes) -> None:
        """Applies a record of the push log at the start."""
        part: MovedPart = decode_request(MovedPart, content)
        try:
            self._rows.apply(part)
        except SparringError as error:
            _log.warning("replay of a move: %s; its rows are not used", error)
        if part.stage == MoveStage.LEAVE:
            self._rows.erase_left(part.begin, part.end)

    def settle(self, shards: ShardReplicas) -> None:
        """Takes and gives up partitions at the start, after the replay of the push log."""
        with self._adopting:
            self._min_number = shards.number
            self._adopt(shards)
        self._erase_left()

    def _adopt(self, shards: ShardReplicas) -> None:
        number = self._shard.position.shard
        mine = shards.owners == number
        works = []
        with self._in_order() as log:
            gained, left = mine & ~self._rows.owned, self._rows.owned & ~mine
            is_ready = self._is_ready(gained)
            changes = [(MoveStage.OWN, each) for each in _ranges(gained)]
            changes += [(MoveStage.LEAVE, each) for each in _ranges(left)]
            parts = [
                MovedPart(stage, begin=begin, end=end, map_number=shards.number)
                for stage, (begin, end) in changes
            ]
            # If the log fails, the map is read again later; until then, the partitions have no owner.
            self._closed |= left
            for part in parts:
                if log is not None:
                    log.append_change(encode(part))
            works += [self._queue.call(partial(self._rows.apply, part)) for part in parts]
            if gained.any() or shards.num_shards != self._map.num_shards:
                self._min_number = shards.number
            self._map = shards
            self._closed |= gained | left
            works.append(self._queue.call(lambda: self._rows.describe(shards)))
        for each in works:
            each.result()
        position = ShardPosition(shards, number)
        with self._in_order():
            self._shard.position = self._lookups.position = position
            self._closed &= ~(gained | left)
            self._left |= left
            self._opened.notify_all()
        if not is_ready:
            self._shard.note_loss("the shard owns partitions whose rows it did not receive")

    def _erase_left(self) -> None:
        """Erases rows that moved to other shards. It takes long, so `adopt` must not wait for it."""
        with self._erasing:
            found = self._left.copy()
            for begin, end in _ranges(found):
                self._rows.erase_left(begin, end)
            with self._in_order():
                self._left &= ~found

    def _is_ready(self, gained: Mask) -> bool:
        found = self._rows.incoming
        if not gained.any():
            return True
        if found is None or found.tokens is None:
            return False
        return not (gained[: found.begin].any() or gained[found.end :].any())

    def _record(self, part: MovedPart, log: PushLog | None) -> Any:
        """Writes a change to the push log and adds it to the queue."""
        if log is not None:
            log.append_change(encode(part))
        return self._queue.call(partial(self._rows.apply, part))

    # -- at the source

    def move(self, content: bytes, seconds: float) -> bytes:
        """Answers a MoveRequest with a MoveReply."""
        request: MoveRequest = decode_request(MoveRequest, content)
        if self._store is None:
            raise _refused(
                "this service cannot be resized, because its shards have several replicas, or no "
                "parameters.replication.store is set; save, stop all servers, and start the new number"
            )
        self.read_map()
        self._erase_left()
        if request.is_settled:
            self._drop_incoming()
        if request.begin == request.end:
            return encode(MoveReply(self._map.number))
        deadline = time.monotonic() + seconds
        if not self._one_at_a_time.acquire(blocking=False):
            raise _refused("this shard is moving other partitions; try again later")
        try:
            with _refuse_errors():
                return self._move(request, deadline)
        finally:
            self._one_at_a_time.release()

    def _move(self, request: MoveRequest, deadline: float) -> bytes:
        begin, end, target = request.begin, request.end, request.target
        shards, own = self._map, self._shard.position.shard
        is_known = 0 <= begin < end <= NUM_PARTITIONS and 0 <= target < shards.num_shards
        if not is_known or target == own or not (shards.owners[begin:end] == own).all():
            raise _refused(
                f"partitions {begin} to {end - 1} cannot move from shard {own + 1} to {target + 1}: map "
                f"{shards.number} of {shards.num_shards} shards has other owners; read the map again"
            )
        self._rows.check_movable()
        address = shards.shards[target][0]
        part = MovedPart(MoveStage.BEGIN, secrets.token_hex(8), begin, end)
        changed = self._rows.track(begin, end)
        num_rows = 0
        try:
            self._send(address, part, deadline)
            for table, keys in self._rows.scan(begin, end):
                num_rows += len(keys)
                self._send_rows(address, part, table, keys, deadline)
            self._send(address, replace(part, stage=MoveStage.SYNC), deadline)
            for _ in range(_MAX_ROUNDS):
                taken = {table: each.take() for table, each in changed.items()}
                for table, keys in taken.items():
                    self._send_rows(address, part, table, keys, deadline)
                if sum(map(len, taken.values())) <= _FEW_KEYS:
                    break
            closed_at = time.monotonic()
            with self._in_order():
                self._closed[begin:end] = True
            # Pushes that were accepted before are applied first.
            last = self._queue.call(lambda: self._rows.finish(part, changed))
            for each in last.result(_left(deadline)):
                self._send(address, each, deadline)
            after = self._replace_map(shards, begin, end, target)
        except BaseException:
            self._open(begin, end)
            self._cancel(address, part)
            raise
        finally:
            self._rows.stop_tracking(changed)
        _log.info(
            "moved partitions %d to %d with %d rows to shard %d; pushes to them waited %.1f ms",
            begin, end - 1, num_rows, target + 1, 1000 * (time.monotonic() - closed_at),
        )  # fmt: skip
        # This opens the partitions. If it fails, the target owns them, so they stay closed here.
        try:
            self.adopt(after)
        finally:
            self._notify(address)
        self._erase_left()
        return encode(MoveReply(after.number, num_rows))

    def _open(self, begin: int, end: int) -> None:
        with self._in_order():
            self._closed[begin:end] = False
            self._opened.notify_all()

    def _replace_map(
        self, shards: ShardReplicas, begin: int, end: int, target: int
    ) -> ShardReplicas:
        """Replaces the map. Returns only if it is certain that it was replaced, and raises only if it is
        certain that it was not."""
        assert self._store is not None
        own, owners = self._shard.position.shard, shards.owners.copy()
        owners[begin:end] = target
        after = shards.with_owners(owners, shards.number + 1)
        try:
            if self._store.replace(shards, after):
                return after
        except StorageIOError as error:
            _log.warning("resize: %s; the result of the change is read again", error)
        while True:
            try:
                # A change that is still on its way fails after this one.
                found = self._store.renumber(shards, own)
                break
            except StorageIOError:
                time.sleep(0.1)
        if (found.owners[begin:end] == target).all():
            return found
        self.adopt(found)
        raise _refused("the shard map changed during the move; read it and try again")

    def _send_rows(
        self,
        address: str,
        part: MovedPart,
        table: str,
        keys: npt.NDArray[np.int64],
        deadline: float,
    ) -> None:
        for each in self._rows.read(part, table, keys):
            self._send(address, each, deadline)

    def _send(self, address: str, part: MovedPart, deadline: float) -> None:
        seconds = min(_left(deadline), _PART_SECONDS)
        [outcome] = self._transport.exchange([Send(address, "MovePart", encode(part), seconds)])
        if outcome.answer is None:
            raise _refused(
                f"the target {address} failed: {outcome.status} {outcome.message}; the partitions "
                "stayed where they were"
            )

    def _cancel(self, address: str, part: MovedPart) -> None:
        """Asks the target to drop the rows; if it does not answer, the next move to it does."""
        content = encode(replace(part, stage=MoveStage.CANCEL))
        list(self._transport.exchange([Send(address, "MovePart", content, 2.0)]))

    def _notify(self, address: str) -> None:
        """Asks the target to read the map. Otherwise it does so when a client calls it."""
        list(self._transport.exchange([Send(address, "Move", encode(MoveRequest()), 2.0)]))

    # -- at the target

    def move_part(self, content: bytes, seconds: float) -> bytes:
        """Answers a MovedPart of the source with a MoveReply."""
        part: MovedPart = decode_request(MovedPart, content)
        if self._store is None or not 0 <= part.begin < part.end <= NUM_PARTITIONS:
            raise _refused(
                "this server does not accept partitions; check the servers of the service"
            )
        with _refuse_errors():
            if part.stage == MoveStage.BEGIN:
                self._rows.check_movable()
                self.read_map()
                self._erase_left()  # otherwise it could erase rows of partitions that come back
            # A part that is applied wrongly here would be replayed wrongly at each start.
            self._rows.check(part)
            with self._one_part:
                self._check_part(part)
                with self._in_order() as log:
                    if part.stage != MoveStage.CANCEL:
                        _check_space(log, len(content))
                    done = self._record(part, log)
                done.result(seconds)
                if part.stage == MoveStage.SYNC and log is not None:
                    # The source erases the rows later. A power failure can only lose the last changes.
                    log.sync()
        return encode(MoveReply(self._map.number))

    def _check_part(self, part: MovedPart) -> None:
        found = self._rows.incoming
        if part.stage == MoveStage.BEGIN:
            if self._rows.owned[part.begin : part.end].any() or self._is_mine(found):
                raise _refused("this shard owns some of the partitions; read the shard map again")
        elif part.stage in (MoveStage.OWN, MoveStage.LEAVE) or part.stage not in set(MoveStage):
            raise _refused(f"found the stage {part.stage}; upgrade all servers")
        elif found is None or (found.move, found.begin, found.end) != (
            part.move,
            part.begin,
            part.end,
        ):
            raise _refused(
                "this shard does not expect the partitions, or another move replaced this one"
            )
        elif part.stage == MoveStage.CANCEL and self._is_mine(found):
            raise _refused("the partitions already belong to this shard")

    def _is_mine(self, found: Incoming | None) -> bool:
        """Whether the shard map gives this shard the partitions that it received. If it does not, the
        source cannot change it afterwards."""
        assert self._store is not None
        if found is None or found.tokens is None:
            return False
        number = self._shard.position.shard
        with _unavailable():
            # The source may be about to replace the map; with another number, this fails.
            shards = self._store.renumber(self._map, number)
        return bool((shards.owners[found.begin : found.end] == number).all())

    def _drop_incoming(self) -> None:
        with self._one_part:
            found = self._rows.incoming
            if found is None or self._is_mine(found):
                return
            part = MovedPart(MoveStage.CANCEL, found.move, found.begin, found.end)
            with self._in_order() as log:
                done = self._record(part, log)
            done.result()


def _check_space(log: PushLog | None, num_bytes: int) -> None:
    """Rejects a part that does not fit into the push log, which would otherwise not log pushes either."""
    why = "" if log is None else log.gap
    if log is not None and not why and not log.has_space(num_bytes):
        why = "it is full, see parameters.push_log_bytes"
    if why:
        raise StatusError(
            Status.RESOURCE_EXHAUSTED,
            f"the push log of this shard has no space for moved rows ({why}); save, then move again",
            reason="push_log",
        )


@contextmanager
def _unavailable() -> Iterator[None]:
    """Converts errors of the store to `StatusError`, after which clients try again."""
    try:
        yield
    except StorageIOError as error:
        raise StatusError(Status.UNAVAILABLE, str(error), reason="store") from error


@contextmanager
def _refuse_errors() -> Iterator[None]:
    """Converts errors to `StatusError`."""
    try:
        yield
    except StatusError:
        raise
    except TimeoutError:
        raise StatusError(
            Status.DEADLINE_EXCEEDED, "resize: the queue of the shard was too long"
        ) from None
    except SparringError as error:
        raise _refused(str(error)) from error


def _refused(why: str) -> StatusError:
    return StatusError(Status.FAILED_PRECONDITION, f"resize: {why}", reason="resize")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise StatusError(
            Status.DEADLINE_EXCEEDED,
            "resize: the move did not end in time; the partitions stayed here",
        )
    return left


def _ranges(mask: Mask) -> list[tuple[int, int]]:
    """Returns the half-open ranges of a mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]
