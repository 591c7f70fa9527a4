"""Ranks and links. One machine represents all of them.

All machines do the same at the same time: rank r + ranks_per_machine does what rank r does. Therefore,
when a rank of the simulated machine sends a message to another machine, the simulated machine receives
an equal message from a third machine at that moment. This is exact, not an approximation, and makes
simulations of a thousand ranks cheap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sparring_plan.simulation.clock import Clock, Worker
from sparring_plan.simulation.model import Network

__all__ = ["Cluster", "Group", "Message", "Phase", "Rank"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message, identified by its phase, kind, hop and chunk."""

    phase: int
    kind: str
    hop: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that exchange messages. At hop h, each rank sends to the h-th rank after it.

    Args:
        size: Number of ranks in the group.
        stride: Distance between neighboring ranks.
        span: Number of ranks after which the group wraps around: the group of rank r is within the
            `span` ranks from ``r - r % span``.
    """

    size: int
    stride: int
    span: int

    def peer(self, rank: int, hop: int) -> int:
        """Returns the rank `hop` positions after `rank`, or before it if negative."""
        base = rank - rank % self.span
        return base + (rank - base + hop * self.stride) % self.span


class Phase(ABC):
    """Work of a rank until its next phase. Driven by `advance`."""

    def __init__(self, rank: Rank, number: int) -> None:
        self.rank = rank
        self.number = number

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def arrived(self, message: Message) -> None:
        """Called when a message of this phase was received."""

    def take_seconds(self, _message: Message) -> float:
        """Returns the time of the driving thread to receive a message, in addition to the message
        itself."""
        return 0.0


@dataclass(slots=True)
class Rank:
    """One rank: a driving thread, and a concurrent lane."""

    number: int
    cluster: Cluster
    driver: Worker = field(default_factory=Worker)
    lane: Worker = field(default_factory=Worker)
    near_out: Worker = field(default_factory=Worker)
    near_in: Worker = field(default_factory=Worker)
    far_bytes: int = 0
    near_bytes: int = 0
    """Bytes sent to ranks of its machine; `far_bytes` to ranks of other machines."""
    num_sent: int = 0
    ended_at: float = 0.0
    _phases: list[Phase] = field(default_factory=list)
    _at: int = -1
    _early: dict[int, list[Message]] = field(default_factory=dict)

    def begin(self, phases: Sequence[Phase]) -> None:
        self._phases = list(phases)
        self.next_phase()

    def next_phase(self) -> None:
        """Starts the next phase, and processes messages that arrived early for it."""
        self._at += 1
        self.ended_at = max(self.cluster.clock.now, self.driver.free_at)
        if self._at == len(self._phases):
            return
        phase = self._phases[self._at]
        phase.start()
        for message in self._early.pop(self._at, []):
            self._take_in(message)

    def drive(self, seconds: float, then: Callable[[], None]) -> None:
        """Occupies the driving thread, then calls `then`."""
        clock = self.cluster.clock
        clock.at(self.driver.take(clock.now, seconds), then)

    def work(self, seconds: float, then: Callable[[], None]) -> None:
        """Occupies the lane, then calls `then`."""
        clock = self.cluster.clock
        clock.at(self.lane.take(clock.now, seconds), then)

    def send(
        self, message: Message, num_bytes: int, peer: int, *, seconds: float = 0.0
    ) -> Callable[[Callable[[], None]], None]:
        """Sends a message after `seconds` of work of the driving thread. Returns a function that
        registers a callback for the time when the message has left."""
        if self.cluster.is_near(self.number, peer):
            self.near_bytes += num_bytes
        else:
            self.far_bytes += num_bytes
        self.num_sent += 1
        waiting: list[Callable[[], None]] = []

        def left() -> None:
            for call in waiting:
                call()

        handed = partial(self.cluster.transmit, self, message, num_bytes, peer, left)
        self.drive(seconds + self.cluster.network.message_seconds, handed)
        return waiting.append

    def receive(self, message: Message) -> None:
        """Called when a message has arrived completely."""
        if message.phase == self._at:
            self._take_in(message)
        else:
            self._early.setdefault(message.phase, []).append(message)

    def _take_in(self, message: Message) -> None:
        phase = self._phases[message.phase]
        seconds = self.cluster.network.message_seconds + phase.take_seconds(message)
        self.drive(seconds, partial(phase.arrived, message))


class Cluster:
    """All ranks, of which the ranks of the first machines are simulated.

    Args:
        world_size: Number of ranks.
        network: Timing of messages.
        num_machines: Number of machines to simulate; more than one gives the same times.
        has_one_core: Whether one core per rank drives the exchange, finds rows, adds gradients, and
            transfers messages within the machine.
    """

    def __init__(
        self,
        world_size: int,
        network: Network,
        num_machines: int = 1,
        *,
        has_one_core: bool = False,
    ) -> None:
        self.world_size = world_size
        self.network = network
        self.clock = Clock()
        self.links_out = [Worker() for _ in range(num_machines)]
        self.links_in = [Worker() for _ in range(num_machines)]
        self.ranks = [Rank(each, self) for each in range(num_machines * network.ranks_per_machine)]
        if has_one_core:
            for rank in self.ranks:
                rank.lane = rank.near_out = rank.near_in = rank.driver

    def is_near(self, rank: int, peer: int) -> bool:
        """Returns whether two ranks are on one machine."""
        per_machine = self.network.ranks_per_machine
        return rank // per_machine == peer // per_machine

    def transmit(
        self, rank: Rank, message: Message, num_bytes: int, peer: int, left: Callable[[], None]
    ) -> None:
        """Puts a message on the sender's link now."""
        per_machine, clock = self.network.ranks_per_machine, self.clock
        receiver = self.ranks[peer % len(self.ranks)]
        if self.is_near(rank.number, peer):
            bandwidth = self.network.machine_bytes_per_second
            latency = self.network.machine_latency_seconds
            link_out, link_in = rank.near_out, receiver.near_in
        else:
            bandwidth, latency = self.network.bytes_per_second, self.network.latency_seconds
            link_out = self.links_out[rank.number // per_machine]
            link_in = self.links_in[receiver.number // per_machine]
        seconds = num_bytes / bandwidth
        gone = link_out.take(clock.now, seconds)
        clock.at(gone, left)

        def first_byte() -> None:
            clock.at(link_in.take(clock.now, seconds), partial(receiver.receive, message))

        clock.at(gone - seconds + latency, first_byte)
