"""Runs many commands at once, on the servers that own their keys, within one deadline.

Retries
    A command that the server rejected before running it (for example because a slot moved, or the
    server is loading) is sent again. A command whose reply was lost may have run; it is sent again only
    if the caller declares that it is repeatable. Retries end with the deadline.

Failed calls
    Each command runs atomically; some of a call's commands may have run. Writes of an older call cannot
    arrive after writes of a newer one: see `sparring_redis.connections.server`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from sparring.errors import DeadlineError, StorageIOError
from sparring_redis.connections.connection import RedisConnection
from sparring_redis.connections.deadline import Deadline
from sparring_redis.connections.location import Address
from sparring_redis.connections.refusals import (
    RETRYABLE_CODES,
    RejectedError,
    has_error_code,
    is_permanent,
)
from sparring_redis.connections.server import Server
from sparring_redis.connections.topology import Topology

__all__ = ["Client", "Command"]

_PENDING: Any = object()
_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.005, 0.2


@dataclass(frozen=True, slots=True)
class Command:
    """An encoded command and the cluster slot of its key."""

    slot: int
    data: bytes


class Client:
    """Sends all requests of a storage or a rendezvous to Redis. It is thread-safe.

    Args:
        topology: finds the server of each slot.
        deadline_seconds: maximum time of one call.
        what: name of the owner for messages, for example ``table 'item'``.
    """

    def __init__(self, topology: Topology, deadline_seconds: float, what: str) -> None:
        self.topology = topology
        self.deadline_seconds = deadline_seconds
        self._what = what

    def run(
        self,
        commands: Sequence[Command],
        operation: str,
        *,
        is_write: bool,
        is_repeatable: bool = True,
        may_be_refused: bool = False,
        deadline: Deadline | None = None,
    ) -> list[Any]:
        """Runs all commands, in any order.

        Args:
            commands: the commands.
            operation: name of the operation, for messages.
            is_write: whether the commands change data.
            is_repeatable: whether running a command twice has the same effect and reply as once.
            may_be_refused: whether to return errors of the server as replies instead of raising them.
            deadline: deadline of the call; None for a new one.

        Returns:
            One reply per command.

        Raises:
            DeadlineError: not all replies arrived in time.
            StorageIOError: Redis is unreachable or rejected a command, or the reply to a command that
                is not repeatable was lost.
        """
        deadline = deadline or Deadline(self.deadline_seconds)
        call = _Call(commands, operation, is_write, is_repeatable, deadline)
        wait = _SHORTEST_WAIT_SECONDS
        while True:
            before = call.failure
            try:
                self._attempt(call)
            except (RedisError, OSError) as error:
                call.failure = error
            if deadline.is_over and before is not None and _is_timeout(call.failure):
                # The earlier failure is more informative than the timeout of the retry.
                call.failure = before
            refusals = [each for each in call.replies if isinstance(each, ResponseError)]
            if refusals and not may_be_refused:
                raise self._rejected_error(call, refusals)
            if call.is_answered:
                return call.replies
            if call.may_have_run and not is_repeatable:
                raise self._connection_error(call)
            if is_permanent(call.failure):
                raise self._rejected_error(call, [call.failure])
            if deadline.is_over:
                raise self._deadline_error(call)
            try:
                time.sleep(min(wait, deadline.remaining()))
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
                self.topology.refresh(deadline)
            except (RedisError, OSError) as error:
                if is_permanent(error):
                    raise self._rejected_error(call, [error]) from error
                call.failure = call.failure or error

    def close(self) -> None:
        self.topology.close()

    # -- one attempt ------------------------------------------------------------

    def _attempt(self, call: _Call) -> None:
        """Sends commands without a reply and reads all replies; raises the first failure at the end."""
        call.failure = None
        under_way: list[_PendingRequest] = []
        try:
            for server, places in self._rounds(call).items():
                try:
                    connection = server.acquire(call.deadline, is_write=call.is_write)
                except (RedisError, OSError) as error:
                    call.failure = error
                    continue
                under_way.append(_PendingRequest(server, connection, places))
                try:
                    connection.send(b"".join([call.commands[place].data for place in places]))
                except (RedisError, OSError) as error:
                    self._fail(call, under_way.pop(), error)
            while under_way:
                server, connection, places = under_way[0]
                try:
                    for place in places:
                        call.replies[place] = connection.receive()
                except (RedisError, OSError) as error:
                    self._fail(call, under_way.pop(0), error)
                    continue
                under_way.pop(0)
                server.release(connection)
        except BaseException:
            # Interrupted: the next user of these connections must not read the remaining replies.
            for server, connection, _ in under_way:
                server.discard(connection, has_writes=call.is_write)
            raise
        self._handle_replies(call)

    def _rounds(self, call: _Call) -> dict[Server, list[int]]:
        rounds: dict[Server, list[int]] = {}
        pending = [i for i, reply in enumerate(call.replies) if reply is _PENDING]
        if any(self.topology.find_server(call.commands[place].slot) is None for place in pending):
            self.topology.refresh(call.deadline)
        for place in pending:
            server = self.topology.find_server(call.commands[place].slot)
            if server is None:
                call.failure = RedisError(
                    f"no server is known for slot {call.commands[place].slot}"
                )
            else:
                rounds.setdefault(server, []).append(place)
        return rounds

    def _fail(self, call: _Call, failed: _PendingRequest, error: Exception) -> None:
        failed.server.discard(failed.connection, has_writes=call.is_write)
        # A server that is loading, or rejects the login, has not run any command.
        if not isinstance(error, (AuthenticationError, BusyLoadingError)):
            call.may_have_run = True
        call.failure = error

    def _handle_replies(self, call: _Call) -> None:
        """Marks commands as unanswered if their reply shows that they did not run."""
        for place, reply in enumerate(call.replies):
            if has_error_code(reply, RETRYABLE_CODES):
                call.failure = reply
                call.replies[place] = _PENDING
                if has_error_code(reply, ("ASK",)):
                    call.replies[place] = self._follow_redirection(call, place, str(reply))

    def _follow_redirection(self, call: _Call, place: int, reply: str) -> Any:
        """Runs a command on the server to which its slot is being moved."""
        target = reply.rsplit(maxsplit=1)[-1]
        host, _, port = target.rpartition(":")
        server = self.topology.server(Address(host, int(port)))
        connection = server.acquire(call.deadline, is_write=call.is_write)
        try:
            connection.send(b"*1\r\n$6\r\nASKING\r\n" + call.commands[place].data)
            connection.receive()
            found = connection.receive()
        except (RedisError, OSError) as error:
            self._fail(call, _PendingRequest(server, connection, [place]), error)
            return _PENDING
        except BaseException:
            server.discard(connection, has_writes=call.is_write)
            raise
        server.release(connection)
        return _PENDING if has_error_code(found, RETRYABLE_CODES) else found

    # -- messages of errors -------------------------------------------------------

    def _describe_call(self, call: _Call) -> str:
        return f"{call.operation} of {self._what}, {self.topology.place}"

    def _describe_outcome(self, call: _Call) -> str:
        if not call.is_write:
            return ""
        return (
            f" {call.num_answered} of {len(call.commands)} commands are known to have run; the "
            "others may have. Repeating the same call completes it."
        )

    def _rejected_error(self, call: _Call, refusals: Sequence[Any]) -> StorageIOError:
        if isinstance(refusals[0], RejectedError):
            return StorageIOError(
                f"{self._describe_call(call)}: {refusals[0]}; fix that on the server, or the "
                f"options.{self._describe_outcome(call)}",
                operation=call.operation,
            )
        return StorageIOError(
            f"{self._describe_call(call)}: {len(refusals)} of {len(call.commands)} commands were "
            f"rejected, the first with: {refusals[0]}; fix that on the server, or the user's "
            f"permissions.{self._describe_outcome(call)}",
            operation=call.operation,
        )

    def _connection_error(self, call: _Call) -> StorageIOError:
        return StorageIOError(
            f"{self._describe_call(call)}: the connection failed before all replies arrived "
            f"({call.failure}), and the command cannot be repeated safely; see whether the server "
            f"runs, then call again.{self._describe_outcome(call)}",
            operation=call.operation,
        )

    def _deadline_error(self, call: _Call) -> DeadlineError | StorageIOError:
        seconds = f"{call.deadline.seconds:g} s"
        details = {"operation": call.operation, "deadline_seconds": call.deadline.seconds}
        if call.may_have_run or _is_timeout(call.failure):
            return DeadlineError(
                f"{self._describe_call(call)}: no complete reply within {seconds} (last: "
                f"{call.failure}); see whether the server is stopped, overloaded or far away, or raise "
                f"deadline_seconds.{self._describe_outcome(call)}",
                **details,
            )
        return StorageIOError(
            f"{self._describe_call(call)}: cannot be reached for {seconds} (last: {call.failure}); see "
            f"whether the server runs there.{self._describe_outcome(call)}",
            **details,
        )


class _PendingRequest(NamedTuple):
    """Commands that were sent, and the connection that will return their replies."""

    server: Server
    connection: RedisConnection
    places: list[int]


class _Call:
    """State of one call."""

    def __init__(
        self,
        commands: Sequence[Command],
        operation: str,
        is_write: bool,
        is_repeatable: bool,
        deadline: Deadline,
    ) -> None:
        self.commands = commands
        self.operation = operation
        self.is_write = is_write
        self.is_repeatable = is_repeatable
        self.deadline = deadline
        self.replies: list[Any] = [_PENDING] * len(commands)
        self.failure: Exception | None = None
        self.may_have_run = False

    @property
    def is_answered(self) -> bool:
        return not any(reply is _PENDING for reply in self.replies)

    @property
    def num_answered(self) -> int:
        return sum(
            not (reply is _PENDING or isinstance(reply, ResponseError)) for reply in self.replies
        )


def _is_timeout(error: Exception | None) -> bool:
    return isinstance(error, (TimeoutError, RedisTimeoutError))
