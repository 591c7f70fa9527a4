"""Detects restarts of shards, and which acknowledged pushes they have lost."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparring_serve.client.failures import ShardRestartedError
from sparring_serve.parameters.push_window import WIDTH
from sparring_serve.wire.messages import FlushReply, PushReply

__all__ = ["Incarnations", "has_earlier_pushes", "new_incarnation"]

_BEGAN_EMPTY = 1 << 62
"""Bit of incarnations that began without partitions: all rows came from other shards, with all pushes."""


def new_incarnation(*, has_partitions: bool = True) -> int:
    """Returns a random incarnation.

    Args:
        has_partitions: Whether the shard owns partitions, so that it could lack their earlier pushes.
    """
    return max(1, secrets.randbits(62)) | (0 if has_partitions else _BEGAN_EMPTY)


def has_earlier_pushes(incarnation: int) -> bool:
    """Returns whether a shard with this incarnation could lack pushes of an earlier one. If it owned no
    partitions when it began, for example because a resize had removed it, there are none."""
    return not incarnation & _BEGAN_EMPTY


@dataclass(slots=True)
class _Shard:
    incarnation: int
    acknowledged: deque[int] = field(default_factory=lambda: deque(maxlen=WIDTH))
    """Numbers of this client's last pushes."""


class Incarnations:
    """Incarnations of the shards of one client. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: dict[str, _Shard] = {}

    def last(self, address: str) -> int:
        """Returns the incarnation in the last reply of a shard; 0 if there was none."""
        with self._lock:
            found = self._shards.get(address)
            return 0 if found is None else found.incarnation

    def take(
        self, answers: Sequence[PushReply | FlushReply], addresses: Sequence[str], number: int
    ) -> ShardRestartedError | None:
        """Records the replies to one call; returns the error to raise if a shard restarted.

        Args:
            answers: Replies of all shards.
            addresses: Addresses of all shards.
            number: Number of the push; 0 if the call was a flush.
        """
        lost: dict[int, tuple[int, ...]] = {}
        with self._lock:
            for shard, answer in enumerate(answers):
                known = self._shards.setdefault(addresses[shard], _Shard(answer.incarnation))
                if known.incarnation != answer.incarnation:
                    if has_earlier_pushes(answer.incarnation):
                        lost[shard] = tuple(
                            each for each in known.acknowledged if each > answer.known_at_start
                        )
                        known.acknowledged.clear()
                    known.incarnation = answer.incarnation
                if number:
                    known.acknowledged.append(number)
        if not lost:
            return None
        listed = "; ".join(
            f"shard {shard + 1} at {addresses[shard]} restarted without "
            + (f"pushes {_ranges(numbers)}" if numbers else "all pushes that it had acknowledged")
            for shard, numbers in lost.items()
        )
        done = f"push {number}" if number else "the flush"
        return ShardRestartedError(
            f"{listed}. {done[0].upper()}{done[1:]} itself succeeded on all shards; do not repeat it. "
            "Load a snapshot (load) and continue from its step, so that all shards have the same pushes; "
            "or continue, and accept the loss with save(accept_loss=True)",
            shards=tuple(lost),
            lost=lost,
        )


def _ranges(numbers: Sequence[int]) -> str:
    """Formats numbers, for example ``3-7, 9 of this client``."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    text = ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in parts)
    return f"{text} of this client"
