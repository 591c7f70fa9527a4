"""Detects restarts of shards, and which acknowledged pushes they have lost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparring_serve.client.failures import ShardRestartedError
from sparring_serve.parameters.push_window import WIDTH
from sparring_serve.wire.messages import FlushReply, PushReply

__all__ = ["Incarnations"]


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
                    lost[shard] = tuple(
                        each for each in known.acknowledged if each > answer.known_at_start
                    )
                    known.incarnation = answer.incarnation
                    known.acknowledged.clear()
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
