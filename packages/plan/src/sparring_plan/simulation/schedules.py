"""The phases of one step for each schedule. Message sizes come from the exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sparring import ExchangeOptions
from sparring.adapter import MessageSizes
from sparring.contracts import TableConfig
from sparring_plan.simulation.cluster import Group, Phase, Rank
from sparring_plan.simulation.model import Compute, Network, SimulatedSchedule, Workload
from sparring_plan.simulation.phases import AllToAll, Computing, Peers
from sparring_plan.simulation.ring import PullPhase, PushPhase, Stream, split_row_parts

__all__ = ["make_phases"]

Counts = npt.NDArray[np.int64]

_HEADER_BYTES = MessageSizes.header_bytes(1)


def make_phases(
    schedule: SimulatedSchedule,
    rank: Rank,
    world_size: int,
    *,
    network: Network,
    compute: Compute,
    workload: Workload,
) -> list[Phase]:
    """Returns all phases of a step of one rank: pull, push, and the headers before each and at the
    end."""
    plan = _Plan(rank, world_size, network, compute, workload)
    {
        SimulatedSchedule.RING: plan.add_ring,
        SimulatedSchedule.SEQUENTIAL: plan.add_sequential,
        SimulatedSchedule.TWO_LEVELS: plan.add_two_levels,
    }[schedule]()
    return plan.phases


class _Plan:
    def __init__(
        self,
        rank: Rank,
        world_size: int,
        network: Network,
        compute: Compute,
        workload: Workload,
    ) -> None:
        self.phases: list[Phase] = []
        self._rank = rank
        self._compute = compute
        self._workload = workload
        wire_dtype = workload.wire_dtype
        options = ExchangeOptions(row_wire_dtype=wire_dtype, gradient_wire_dtype=wire_dtype)
        self._sizes = MessageSizes([TableConfig("simulated", workload.dim)], options)
        self._per_machine = network.ranks_per_machine
        self._whole = Group(world_size, 1, world_size)

    def add_ring(self) -> None:
        stream = self._stream(self._whole, self._workload.num_keys)
        self._add_headers(self._whole)
        self._add(PullPhase, stream)
        self._add_headers(self._whole)
        self._add(PushPhase, stream)
        self._add_headers(self._whole)

    def add_sequential(self) -> None:
        counts = _spread(self._workload.num_keys, self._whole.size)
        rows = int(counts.sum())
        self._add_headers(self._whole)
        self._add_all_to_all(self._whole, self._key_bytes(counts))
        self._add(Computing, rows * self._compute.find_seconds_per_row)
        self._add_all_to_all(self._whole, self._row_bytes(counts), self._moving(counts))
        self._add_headers(self._whole)
        self._add(Computing, rows * self._compute.move_seconds_per_row)
        self._add_all_to_all(self._whole, self._gradient_bytes(counts))
        self._add(Computing, rows * self._compute.add_seconds_per_row)
        self._add_headers(self._whole)

    def add_two_levels(self) -> None:
        """Adds the exchange in two levels, which does not overlap finds with transfers."""
        if self._per_machine in (1, self._whole.size):
            self.add_ring()
            return
        compute, num_keys = self._compute, self._workload.num_keys
        counts = _spread(num_keys, self._whole.size)
        rows_per_part = num_keys / self._whole.size

        def add_round(sizes: Sequence[int]) -> None:
            self._add_round(sum(sizes) / len(sizes), rows_per_part)

        self._add_header_round()
        add_round(self._key_bytes(counts))
        self._add(Computing, num_keys * compute.find_seconds_per_row)
        add_round(self._row_bytes(counts))
        self._add(Computing, num_keys * compute.move_seconds_per_row)
        self._add_header_round()
        self._add(Computing, num_keys * compute.move_seconds_per_row)
        add_round(self._gradient_bytes(counts))
        self._add(Computing, num_keys * compute.add_seconds_per_row)
        self._add_header_round()

    def _add_header_round(self) -> None:
        # Leaders also exchange their own headers.
        self._add_round(_HEADER_BYTES, 0.0, [_HEADER_BYTES])

    def _add_round(
        self, part_bytes: float, rows_per_part: float, between_leaders: Sequence[int] = ()
    ) -> None:
        """Adds one message from each rank to each other rank.

        Args:
            part_bytes: Mean size of a message.
            rows_per_part: Rows in a message, which leaders copy.
            between_leaders: Sizes of further messages between leaders.
        """
        number, local = self._rank.number, self._per_machine
        first, own = number - number % local, number % local
        num_machines = self._whole.size // local
        # The rank with this number of a machine leads for machines at these distances.
        led = [range(1 + each, num_machines, local) for each in range(local)]
        others = [each for each in range(local) if each != own]
        leaders = [each for each in others if led[each]]
        move = rows_per_part * self._compute.move_seconds_per_row
        handed = local * len(led[own])
        self._add(
            AllToAll,
            Peers([first + each for each in [*others, *leaders]]),
            [round(part_bytes)] * len(others)
            + [round(part_bytes * local * len(led[each])) for each in leaders],
            lambda hop: move * handed if hop > len(others) else 0.0,
            len(others) * (2 if led[own] else 1),
        )
        partners = [
            (first + distance * local) % self._whole.size + (num_machines - distance - 1) % local
            for distance in led[own]
        ]
        sizes = [*between_leaders, round(part_bytes * local * local)]
        self._add(
            AllToAll,
            Peers([each for each in partners for _ in sizes]),
            sizes * len(partners),
            lambda _: move * local * local,
        )
        self._add(
            AllToAll,
            Peers([first + each for each in others] if led[own] else []),
            [round(part_bytes * handed)] * (len(others) if led[own] else 0),
            None,
            len(leaders),
        )

    def _add(self, phase: Callable[..., Phase], *arguments: object) -> None:
        self.phases.append(phase(self._rank, len(self.phases), *arguments))

    def _add_headers(self, group: Group) -> None:
        self._add(AllToAll, group, [_HEADER_BYTES] * (group.size - 1))

    def _add_all_to_all(
        self,
        group: Group,
        message_bytes: Sequence[int],
        hop_seconds: Callable[[int], float] | None = None,
    ) -> None:
        self._add(AllToAll, group, [MessageSizes.part_header_bytes] * (group.size - 1))
        self._add(AllToAll, group, message_bytes, hop_seconds)

    def _stream(self, group: Group, num_keys: int) -> Stream:
        workload = self._workload
        parts = [
            split_row_parts(each, self._sizes, [self._compute], workload.chunk_rows)
            for each in _spread(num_keys, group.size)
        ]
        return Stream(group, parts, parts, workload.chunks_in_flight)

    def _moving(self, counts: Counts) -> Callable[[int], float]:
        seconds = self._compute.move_seconds_per_row
        return lambda hop: float(counts[hop, 0]) * seconds

    @staticmethod
    def _key_bytes(counts: Counts) -> list[int]:
        return [int(each) * MessageSizes.key_bytes for each in counts[1:, 0]]

    def _row_bytes(self, counts: Counts) -> list[int]:
        return [sum(chunk.reply_bytes for chunk in self._sizes.chunks(each)) for each in counts[1:]]

    def _gradient_bytes(self, counts: Counts) -> list[int]:
        return [
            sum(chunk.gradient_bytes for chunk in self._sizes.chunks(each)) for each in counts[1:]
        ]


def _spread(num_keys: int, parts: int) -> Counts:
    """Distributes keys over hops as evenly as possible, ``(parts, 1)``."""
    ends = np.arange(parts + 1, dtype=np.int64) * num_keys // parts
    return np.diff(ends)[:, None]
