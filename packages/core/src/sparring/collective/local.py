"""Ranks as threads of one process: for tests, simulation and a world of one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque

from sparring.collective.contract import Array, Collective, Work, WorkContext
from sparring.errors import ClosedError, InvalidArgumentError

__all__ = ["LocalCollective", "LocalGroup"]


class LocalGroup:
    """The mailboxes that `world_size` ranks of one process share."""

    def __init__(self, world_size: int, *, deadline_seconds: float = 60.0) -> None:
        if world_size < 1:
            raise InvalidArgumentError(
                f"local group: world_size must be 1 or more, found {world_size}"
            )
        self.world_size = world_size
        self.deadline_seconds = deadline_seconds
        self.changed = threading.Condition()
        # (source, destination, tag) -> messages in the order of sending
        self.boxes: dict[tuple[int, int, int], deque[Array]] = defaultdict(deque)
        self.departed: set[int] = set()

    def join(self, rank: int) -> LocalCollective:
        """The collective of one rank, to be used on that rank's thread."""
        return LocalCollective(self, rank)


class _Sent(Work):
    """A message is copied as it is sent, so its buffer is free at once."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


class _Receiving(Work):
    def __init__(self, owner: LocalCollective, buffer: Array, source: int, tag: int) -> None:
        self._owner = owner
        self._buffer = buffer
        self._source = source
        self._box = (source, owner.rank, tag)
        self._context: WorkContext = owner.context
        self._is_done = False

    def done(self) -> bool:
        group = self._owner.group
        with group.changed:
            return self._is_done or bool(group.boxes[self._box])

    def wait(self) -> None:
        if self._is_done:
            return
        group = self._owner.group
        limit = time.monotonic() + self._owner.deadline_seconds
        with group.changed:
            while not group.boxes[self._box]:
                if self._source in group.departed:
                    raise self._owner.failure(self._source, "it left the group", self._context)
                remaining = limit - time.monotonic()
                if remaining <= 0 or not group.changed.wait(remaining):
                    raise self._owner.failure(
                        self._source,
                        f"nothing came within {self._owner.deadline_seconds:g} s",
                        self._context,
                    )
            message = group.boxes[self._box].popleft()
        if message.nbytes != self._buffer.nbytes:
            raise InvalidArgumentError(
                f"receive from rank {self._source}: the buffer has {self._buffer.nbytes} bytes, the "
                f"message {message.nbytes}; both sides must agree on the size"
            )
        self._buffer.reshape(-1)[...] = message.view(self._buffer.dtype).reshape(-1)
        self._is_done = True


class LocalCollective(Collective):
    """One rank of a `LocalGroup`."""

    def __init__(self, group: LocalGroup, rank: int) -> None:
        super().__init__(rank, group.world_size, deadline_seconds=group.deadline_seconds)
        self.group = group
        self._is_closed = False

    def close(self) -> None:
        with self.group.changed:
            self._is_closed = True
            self.group.departed.add(self.rank)
            self.group.changed.notify_all()

    def failure(self, peer: int, found: str, context: WorkContext) -> Exception:
        return self._peer_failure(peer, found, context)

    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        self._check_open()
        with self.group.changed:
            if destination in self.group.departed:
                raise self._peer_failure(destination, "it left the group", self.context)
            self.group.boxes[(self.rank, destination, tag)].append(buffer.reshape(-1).copy())
            self.group.changed.notify_all()
        return _Sent()

    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work:
        self._check_open()
        return _Receiving(self, buffer, source, tag)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"rank {self.rank} left this local group; join it again")
