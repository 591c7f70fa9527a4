"""Messages in two levels: between two hosts, one message per direction instead of one per pair of ranks.

If streams are short, the time of a step is the fixed cost of its messages, and a rank has one per kind
with each other rank. In two levels, a rank hands its messages for another host to one rank of its host,
the leader for that host. The leader sends those of all its ranks together, and the leader there
distributes them. Hosts are divided among the ranks of a host, so each of them leads for some.

    rank 0 ──┐                                                   ┌──► rank 4
    rank 1 ──┼──► leader for host 1 ═══ all, together ═══► leader for host 0
    rank 2 ──┘                                                   └──► rank 5
    host 0                                                            host 1

Messages between ranks of one host are sent as usual. Contents, and the order in which gradients are
added, do not depend on the way of a message, so all bits are equal. All ranks take part in each round.
Headers have the same size; from those that pass through it, a leader learns the sizes of the messages
that follow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.ranks.collective import WorkContext
from sparring.exchange.messenger import ExchangeCounters, MessageKind, Messenger, Transfer

__all__ = ["Relay", "TwoLevels", "choose_levels", "compute_max_part_bytes"]

_log = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]
Sizes = npt.NDArray[np.int64]

_HANDED, _JOINED, _DISTRIBUTED, _DIRECT = range(32, 36)
"""Tags of the messages of a round."""

_MEASURED_BYTES = (512, 8192)
_REPEATS = 7
_LEAST_GAIN = 0.1
"""Share of the time that two levels must save for the smaller size."""


class TwoLevels:
    """Which rank leads for which host, and how messages get there.

    Args:
        messenger: sends and receives messages.
        hosts: the ranks of each host.
        max_part_bytes: size of a message up to which two levels are used; None: any size.
    """

    def __init__(
        self,
        messenger: Messenger,
        hosts: Sequence[Sequence[int]],
        max_part_bytes: float | None = None,
    ) -> None:
        self.messenger = messenger
        self.max_part_bytes = max_part_bytes
        rank = messenger.collective.rank
        own = next(number for number, ranks in enumerate(hosts) if rank in ranks)
        self.local = list(hosts[own])
        """Ranks of this host, including this one."""
        self.routes: dict[int, list[int]] = {}
        """Leader on this host → ranks of the hosts for which it leads."""
        self.led: list[tuple[int, list[int]]] = []
        """Hosts for which this rank leads: the leader there for this host, and the ranks there."""
        for number, ranks in enumerate(hosts):
            if number == own:
                continue
            # By distance, so that each rank of a host leads for as many hosts, give or take one.
            leader = self.local[((number - own) % len(hosts) - 1) % len(self.local)]
            self.routes.setdefault(leader, []).extend(ranks)
            if leader == rank:
                partner = ranks[((own - number) % len(hosts) - 1) % len(ranks)]
                self.led.append((partner, list(ranks)))
        self.direct_ranks = sorted(
            [each for each in self.local if each != rank] + [partner for partner, _ in self.led]
        )
        """Ranks with which this rank exchanges messages itself."""
        self.far_ranks = [peer for ranks in self.routes.values() for peer in ranks]
        """Ranks of other hosts."""
        self._following: _Following | None = None

    def exchange(
        self,
        kind: MessageKind,
        outgoing: Mapping[int, npt.NDArray[Any]],
        incoming_bytes: Mapping[int, int],
        *,
        meanwhile: Callable[[], None] | None = None,
        part_bytes: int | None = None,
    ) -> dict[int, Bytes]:
        """Sends one message to each rank of `outgoing`, and returns the messages of the ranks of
        `incoming_bytes`. All ranks must call it; a rank without messages passes empty mappings.

        Args:
            kind: kind of the messages. Rows have the second size of the last headers, and other
                messages the first.
            outgoing: rank → C-contiguous array.
            incoming_bytes: rank → size of its message for this rank.
            meanwhile: called while messages are in flight.
            part_bytes: size of the messages, if all ranks send messages of one size to all others.

        Raises:
            PeerFailure: a rank is gone or does not respond.
        """
        if part_bytes is not None:
            sizes = self._equal_sizes(part_bytes)
        else:
            assert self._following is not None
            sizes = self._following.sizes(is_reply=kind is MessageKind.ROWS)
        relay = Relay(self, kind, outgoing, incoming_bytes, sizes)
        received: dict[int, Bytes] = {}
        coming, going = [], []
        for peer in self.local:
            if peer in incoming_bytes:
                received[peer] = np.empty(incoming_bytes[peer], np.uint8)
                coming.append(self.messenger.receive(kind, received[peer], peer, tag=_DIRECT))
            if peer in outgoing:
                message = as_bytes(outgoing[peer])
                going.append(self.messenger.send(kind, message, peer, tag=_DIRECT))
        relay.forward()
        if meanwhile is not None:
            meanwhile()
        received.update(relay.finish())
        for transfer in [*coming, *going]:
            self.messenger.wait(transfer)
        return received

    def exchange_headers(
        self,
        outgoing: Mapping[int, Sizes],
        direct_ranks: Sequence[int],
        take: Callable[[int], Sizes],
        has_ended: Callable[[Sizes], bool],
        sizes_at: slice,
    ) -> dict[int, Sizes]:
        """Exchanges the headers of all ranks, and returns those of the others.

        The ranks that wait for each other in a round first exchange their own headers directly. Thereby
        a rank that has ended, and takes part in no round, is detected as in an exchange in one level.

        Args:
            outgoing: rank → header for it; those for `direct_ranks` were already sent.
            direct_ranks: see the attribute.
            take: waits for the next header of such a rank.
            has_ended: whether a header is a shutdown notice. Then only headers that have arrived are
                returned.
            sizes_at: position in each header of the sizes of the message that follows, and of its reply.

        Raises:
            PeerFailure: a rank is gone or does not respond.
        """
        num_bytes = next(iter(outgoing.values())).nbytes
        incoming = dict.fromkeys(self.far_ranks, num_bytes)
        relay = Relay(self, MessageKind.HEADERS, outgoing, incoming, self._equal_sizes(num_bytes))
        headers: dict[int, Sizes] = {}
        # This host's ranks first, so that their messages are sent before waiting for other hosts.
        for is_near in (True, False):
            for peer in direct_ranks:
                if (peer in self.local) is is_near:
                    headers[peer] = take(peer)
                    if has_ended(headers[peer]):
                        return headers
            if is_near:
                relay.forward()
        headers.update({peer: each.view(np.int64) for peer, each in relay.finish().items()})
        length = num_bytes // 8

        def sizes_of(parts: Bytes) -> Sizes:
            return parts.view(np.int64).reshape(-1, length)[:, sizes_at]

        self._following = _Following(
            [sizes_of(each) for each in relay.handed],
            [
                sizes_of(each).reshape(len(ranks), len(self.local), -1)
                for each, (_, ranks) in zip(relay.joined, self.led, strict=True)
            ],
        )
        return headers

    def _equal_sizes(self, num_bytes: int) -> _Sizes:
        num_handed = len(self.routes.get(self.messenger.collective.rank, ()))
        return _Sizes(
            [np.full(num_handed, num_bytes, np.int64) for _ in self.local],
            [np.full((len(ranks), len(self.local)), num_bytes, np.int64) for _, ranks in self.led],
        )


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    """Returns a C-contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of the messages that pass through this rank as a leader."""

    handed: list[Sizes]
    """For each rank of this host: one per rank of the hosts for which this rank leads."""
    joined: list[Sizes]
    """For each of these hosts, ``(ranks there, ranks of this host)``."""


@dataclass(frozen=True, slots=True)
class _Following:
    """The sizes in headers: of the message that follows, and of its reply, as the last axis."""

    handed: list[Sizes]
    joined: list[Sizes]

    def sizes(self, *, is_reply: bool) -> _Sizes:
        if not is_reply:
            return _Sizes(
                [each[:, 0] for each in self.handed], [each[:, :, 0] for each in self.joined]
            )
        # A reply takes the way of its request in the other direction.
        requests = np.stack([each[:, 1] for each in self.handed]) if self.handed else None
        handed, joined, begin = [], [], 0
        if self.joined and requests is not None:
            handed = list(np.concatenate([each[:, :, 1] for each in self.joined]).T)
            for each in self.joined:
                end = begin + len(each)
                joined.append(requests[:, begin:end].T)
                begin = end
        return _Sizes(handed, joined)


class Relay:
    """A round of messages to other hosts. Creating it hands over this rank's messages; `forward` and
    `finish` must follow in this order. Each of them waits only for messages of an earlier stage.

    Args:
        levels: the routes.
        kind, outgoing, incoming_bytes: see `TwoLevels.exchange`; ranks of this host are ignored.
        sizes: sizes of the messages that pass through this rank.
    """

    def __init__(
        self,
        levels: TwoLevels,
        kind: MessageKind,
        outgoing: Mapping[int, npt.NDArray[Any]],
        incoming_bytes: Mapping[int, int],
        sizes: _Sizes,
    ) -> None:
        self._levels, self._kind, self._sizes = levels, kind, sizes
        self._incoming_bytes = incoming_bytes
        self._messenger = levels.messenger
        self._rank = levels.messenger.collective.rank
        self._going: list[Transfer] = []
        self.handed: list[Bytes] = []
        """After `forward`: the messages of each rank of this host, in the order of the route."""
        self.joined: list[Bytes] = []
        """After `finish`: the messages of each host for which this rank leads."""
        self._own = np.empty(0, np.uint8)
        for leader, ranks in levels.routes.items():
            parts = [as_bytes(outgoing[peer]) for peer in ranks if peer in outgoing]
            joined = np.concatenate(parts) if parts else np.empty(0, np.uint8)
            if leader == self._rank:
                self._own = joined
            else:
                self._send(joined, leader, _HANDED)

    def forward(self) -> None:
        """Sends the messages of all ranks of this host to the hosts for which this rank leads."""
        local, led = self._levels.local, self._levels.led
        if not led:
            return
        self.handed = self._receive_all(local, self._sizes.handed, _HANDED)
        self.handed[local.index(self._rank)] = self._own
        ends = [np.concatenate([[0], np.cumsum(each)]) for each in self._sizes.handed]
        begin = 0
        for partner, ranks in led:
            end = begin + len(ranks)
            parts = [each[at[begin] : at[end]] for each, at in zip(self.handed, ends, strict=True)]
            self._send(np.concatenate(parts), partner, _JOINED)
            begin = end

    def finish(self) -> dict[int, Bytes]:
        """Distributes the messages of other hosts, and returns those for this rank."""
        own = self._distribute()
        leaders = list(self._levels.routes)
        sizes = [
            np.array([self._incoming_bytes.get(peer, 0) for peer in ranks], np.int64)
            for ranks in self._levels.routes.values()
        ]
        messages = self._receive_all(leaders, sizes, _DISTRIBUTED)
        received: dict[int, Bytes] = {}
        for leader, ranks, message, each in zip(
            leaders, self._levels.routes.values(), messages, sizes, strict=True
        ):
            begin = 0
            for peer, end in zip(ranks, np.cumsum(each).tolist(), strict=True):
                if peer in self._incoming_bytes:
                    received[peer] = (own if leader == self._rank else message)[begin:end]
                begin = end
        for transfer in self._going:
            self._messenger.wait(transfer)
        return received

    def _distribute(self) -> Bytes:
        """Receives the messages of the hosts for which this rank leads, sends each rank of this host
        those for it, and returns those for this rank."""
        local, led = self._levels.local, self._levels.led
        own = np.empty(0, np.uint8)
        if not led:
            return own
        partners = [partner for partner, _ in led]
        self.joined = self._receive_all(partners, self._sizes.joined, _JOINED)
        parts: list[list[Bytes]] = [[] for _ in local]
        for message, sizes in zip(self.joined, self._sizes.joined, strict=True):
            begin = 0
            # In the order of their senders, and for each of them in the order of this host's ranks.
            for number, end in enumerate(np.cumsum(sizes).tolist()):
                parts[number % len(local)].append(message[begin:end])
                begin = end
        for peer, some in zip(local, parts, strict=True):
            message = np.concatenate(some)
            if peer == self._rank:
                own = message
            else:
                self._send(message, peer, _DISTRIBUTED)
        return own

    def _receive_all(self, peers: Sequence[int], sizes: Sequence[Sizes], tag: int) -> list[Bytes]:
        """Receives the messages that are not empty; those of this rank are left empty."""
        messages = [
            np.empty(0 if peer == self._rank else int(each.sum()), np.uint8)
            for peer, each in zip(peers, sizes, strict=True)
        ]
        for transfer in [
            self._messenger.receive(self._kind, message, peer, tag=tag)
            for peer, message in zip(peers, messages, strict=True)
            if len(message)
        ]:
            self._messenger.wait(transfer)
        return messages

    def _send(self, buffer: Bytes, peer: int, tag: int) -> None:
        """Starts to send a message, unless it is empty."""
        if len(buffer):
            self._going.append(self._messenger.send(self._kind, buffer, peer, tag=tag))


def choose_levels(messenger: Messenger, is_chosen: bool | None) -> TwoLevels | None:
    """Returns the routes of messages in two levels, or None for messages between all pairs of ranks.
    All ranks must call it.

    Args:
        messenger: sends and receives messages.
        is_chosen: whether to use two levels; None: measures rounds of messages in both ways, which takes
            some milliseconds. There is no choice if all ranks are on one host, or each on its own.
    """
    collective = messenger.collective
    hosts = collective.hosts
    if is_chosen is False or hosts is None or not 1 < len(hosts) < collective.world_size:
        return None
    if is_chosen:
        return TwoLevels(messenger, hosts)
    context = collective.context
    collective.context = WorkContext("tuning")
    # Messages of the measurement are not counted.
    levels = TwoLevels(Messenger(collective, ExchangeCounters()), hosts)
    mine = np.array([_round_seconds(levels, num_bytes) for num_bytes in _MEASURED_BYTES])
    # All ranks use the same numbers, and so make the same choice.
    slowest = np.max(collective.all_gather(mine), axis=0)
    collective.context = context
    limit = compute_max_part_bytes(slowest.tolist())
    if collective.rank == 0:
        _log.info(
            "messages between %d hosts use %s: a round takes %.0f µs in one level, and %.0f µs in two "
            "levels; choose with exchange.two_levels",
            len(hosts),
            "one level" if limit is None else "two levels",
            *(slowest[0] * 1e6),
        )
    return None if limit is None else TwoLevels(messenger, hosts, limit)


def compute_max_part_bytes(seconds: Sequence[Sequence[float]]) -> float | None:
    """Returns the size of messages up to which two levels are faster, or None if they never are.

    Both ways take a fixed time and a time per byte, so the size follows from two measured ones.

    Args:
        seconds: for a small and for a large message, the time of a round between all pairs of ranks, and
            in two levels.
    """
    small, large = (direct - levels for direct, levels in seconds)
    if small < _LEAST_GAIN * seconds[0][0]:
        return None
    if large >= small:
        return float("inf")
    least, most = _MEASURED_BYTES
    return least + (most - least) * small / (small - large)


def _round_seconds(levels: TwoLevels, num_bytes: int) -> tuple[float, float]:
    """Returns the median time of a round between all pairs of ranks, and of one in two levels."""
    messenger = levels.messenger
    peers = messenger.later_ranks
    message = np.zeros(num_bytes, np.uint8)
    direct, two_levels = [], []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        works = [
            messenger.receive(MessageKind.KEYS, np.empty_like(message), peer, tag=_DIRECT)
            for peer in messenger.earlier_ranks
        ]
        works += [messenger.send(MessageKind.KEYS, message, peer, tag=_DIRECT) for peer in peers]
        for each in works:
            messenger.wait(each)
        middle = time.perf_counter()
        levels.exchange(
            MessageKind.KEYS,
            dict.fromkeys(peers, message),
            dict.fromkeys(peers, num_bytes),
            part_bytes=num_bytes,
        )
        direct.append(middle - start)
        two_levels.append(time.perf_counter() - middle)
    return median(direct), median(two_levels)
