"""Phases of schedules other than the ring: computation and all-to-alls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparring_plan.simulation.cluster import Group, Message, Phase, Rank

__all__ = ["AllToAll", "Computing", "Peers"]


class Computing(Phase):
    """A rank computes without communication."""

    def __init__(self, rank: Rank, number: int, seconds: float) -> None:
        super().__init__(rank, number)
        self._seconds = seconds

    def start(self) -> None:
        self.rank.work(self._seconds, self.rank.next_phase)

    def arrived(self, message: Message) -> None:
        raise AssertionError(f"nothing is sent while computing, found {message}")


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks to which one rank sends: the rank at each hop, from hop 1."""

    ranks: Sequence[int]

    def peer(self, _rank: int, hop: int) -> int:
        """Returns the rank at a hop."""
        return self.ranks[hop - 1]


class AllToAll(Phase):
    """Each rank of a group sends one message to each other rank, and waits for all of theirs.

    Args:
        group: Participating ranks.
        message_bytes: Size of the message at each hop, from hop 1.
        hop_seconds: Time of the driving thread to pack or place the message of a hop.
        num_incoming: Number of messages to this rank, if it is not the number of messages from it.
    """

    def __init__(
        self,
        rank: Rank,
        number: int,
        group: Group | Peers,
        message_bytes: Sequence[int],
        hop_seconds: Callable[[int], float] | None = None,
        num_incoming: int | None = None,
    ) -> None:
        super().__init__(rank, number)
        self._group = group
        self._message_bytes = message_bytes
        self._hop_seconds = hop_seconds
        self._num_open = len(message_bytes)
        self._num_open += len(message_bytes) if num_incoming is None else num_incoming

    def start(self) -> None:
        if not self._num_open:
            self.rank.next_phase()
            return
        for hop, num_bytes in enumerate(self._message_bytes, start=1):
            message = Message(self.number, "part", hop)
            when_left = self.rank.send(message, num_bytes, self._group.peer(self.rank.number, hop))
            when_left(self._ended)

    def take_seconds(self, message: Message) -> float:
        return 0.0 if self._hop_seconds is None else self._hop_seconds(message.hop)

    def arrived(self, _message: Message) -> None:
        self._ended()

    def _ended(self) -> None:
        self._num_open -= 1
        if not self._num_open:
            self.rank.next_phase()
