"""Changes the number of shards of a running parameter service: asks one shard after the other to move
partitions.

New shards join the map without partitions first, and removed shards leave it when they have none. The
command can end at any time: each partition has one owner, and another call continues, or goes back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sparring.contracts import ShardMap
from sparring.errors import ConfigError, SparringError, UnsupportedError
from sparring_serve.client.transport import Outcome, Send, Transport
from sparring_serve.resizing.map_store import MapStore
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import MoveReply, MoveRequest

__all__ = ["ResizeError", "ResizeResult", "resize"]

_log = logging.getLogger(__name__)

_NUM_PARTITIONS = 512
"""Maximum number of partitions of one move. At the end of each move, pushes wait for milliseconds."""
_ATTEMPTS = 5


class ResizeError(SparringError):
    """A resize did not end, and each partition has one owner: run `sparring resize` again with the same
    file to continue, or with the previous file to go back."""


@dataclass(frozen=True, slots=True)
class ResizeResult:
    """Result of a resize.

    Args:
        shards: The new shard map.
        partitions: Number of partitions that moved.
        rows: Number of rows that moved.
        seconds: Duration.
    """

    shards: ShardReplicas
    partitions: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Move:
    begin: int
    end: int
    source: int
    target: int


def resize(
    wanted: ShardReplicas,
    maps: MapStore,
    transport: Transport,
    *,
    move_seconds: float = 300.0,
    pause_seconds: float = 2.0,
) -> ResizeResult:
    """Moves partitions until the service has the given shards.

    Args:
        wanted: The new shards; they begin with the current ones, or the current ones begin with them.
        maps: The shard map of the service.
        transport: Connections to the servers.
        move_seconds: Deadline of each move.
        pause_seconds: Time between moves, in which no push waits.

    Raises:
        ConfigError: No server has written a shard map, or the first shards have other addresses.
        ResizeError: A server failed repeatedly.
        StorageIOError: The coordination store failed.
        UnsupportedError: A shard has several replicas.
    """
    if any(len(each) > 1 for each in wanted.shards):
        raise UnsupportedError(
            "resize: `shards` lists several replicas of a shard, and followers do not receive moved "
            "rows; save, stop all servers, and start the new number of shards"
        )
    begin = time.monotonic()
    current = _join(wanted, maps, transport)
    num_partitions = num_rows = 0
    num_failed = 0
    while move := next(_moves(current, wanted.num_shards), None):
        request = MoveRequest(move.begin, move.end, move.target)
        outcome = _ask(transport, current, move.source, request, move_seconds)
        if outcome.answer is not None:
            reply: MoveReply = decode(MoveReply, outcome.answer)
            num_rows += reply.rows
            num_partitions += move.end - move.begin
            num_failed = 0
            transport.pause(pause_seconds)
        else:
            num_failed += 1
            _log.warning("resize: %s %s", outcome.status, outcome.message)
            if num_failed == _ATTEMPTS:
                raise ResizeError(
                    f"resize: partitions {move.begin} to {move.end - 1} did not move from shard "
                    f"{move.source + 1} to {move.target + 1} in {_ATTEMPTS} attempts: {outcome.status} "
                    f"{outcome.message}; remove the cause and run the command again, or go back with "
                    "the previous file"
                )
            transport.pause(0.1 * num_failed)
        current = maps.read() or current
    before, current = current, _leave(wanted, maps, current)
    _settle(transport, before)
    return ResizeResult(current, num_partitions, num_rows, time.monotonic() - begin)


def _join(wanted: ShardReplicas, maps: MapStore, transport: Transport) -> ShardReplicas:
    """Adds the new shards to the map, without partitions."""
    while True:
        current = maps.read()
        if current is None:
            raise ConfigError(
                "resize: the coordination store has no shard map; start the servers with the same "
                "parameters.replication.store first"
            )
        shorter = min(current.num_shards, wanted.num_shards)
        if current.shards[:shorter] != wanted.shards[:shorter]:
            raise ConfigError(
                f"resize: the first {shorter} shards must stay the same, found {wanted.shards[:shorter]} "
                f"in the file and {current.shards[:shorter]} in the service; add shards at the end of "
                "`shards`, or remove them there"
            )
        after = current
        if wanted.num_shards > current.num_shards:
            after = replace(current, shards=wanted.shards).with_owners(
                current.owners, current.number + 1
            )
        # The new servers must answer before clients send them pushes.
        for shard in range(current.num_shards, after.num_shards):
            outcome = _ask(transport, after, shard, MoveRequest(), 5.0)
            if outcome.answer is None:
                raise ResizeError(
                    f"resize: shard {shard + 1} at {after.shards[shard][0]} does not answer: "
                    f"{outcome.status} {outcome.message}; start it with the new file"
                )
        if after is current or maps.replace(current, after):
            _settle(transport, after)
            return after


def _leave(wanted: ShardReplicas, maps: MapStore, current: ShardReplicas) -> ShardReplicas:
    """Removes shards without partitions from the end of the map."""
    while current.num_shards > wanted.num_shards:
        if next(_moves(current, wanted.num_shards), None) is not None:
            raise ResizeError(
                "resize: another resize moved partitions at the same time; run one at a time"
            )
        after = ShardReplicas(current.shards[: wanted.num_shards], current.number + 1)
        if maps.replace(current, after):
            return after
        current = maps.read() or current
    return current


def _settle(transport: Transport, shards: ShardReplicas) -> None:
    """Asks all servers to read the map, and to drop rows of moves that did not end."""
    for shard in range(shards.num_shards):
        outcome = _ask(transport, shards, shard, MoveRequest(is_settled=True), 5.0)
        if outcome.answer is None:
            _log.warning(
                "resize: shard %d does not answer: %s %s",
                shard + 1,
                outcome.status,
                outcome.message,
            )


def _ask(
    transport: Transport, shards: ShardReplicas, shard: int, request: MoveRequest, seconds: float
) -> Outcome:
    [outcome] = transport.exchange(
        [Send(shards.shards[shard][0], "Move", encode(request), seconds)]
    )
    return outcome


def _moves(current: ShardReplicas, num_shards: int) -> Iterator[_Move]:
    """Yields the moves to equal, contiguous ranges of partitions."""
    wanted = ShardMap.balanced(num_shards).owners
    differs = np.flatnonzero(current.owners != wanted)
    while len(differs):
        begin = int(differs[0])
        source, target = int(current.owners[begin]), int(wanted[begin])
        end = begin + 1
        while (
            end < len(wanted)
            and end - begin < _NUM_PARTITIONS
            and (current.owners[end], wanted[end]) == (source, target)
        ):
            end += 1
        yield _Move(begin, end, source, target)
        differs = differs[differs >= end]
