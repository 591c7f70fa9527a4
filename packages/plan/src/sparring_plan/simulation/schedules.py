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
from sparring_plan.simulation.phases import AllToAll, Computing
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
        SimulatedSchedule.HIERARCHICAL: plan.add_hierarchical,
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
        per_machine = network.ranks_per_machine
        self._whole = Group(world_size, 1, world_size)
        self._inside = Group(per_machine, 1, per_machine)
        self._across = Group(world_size // per_machine, per_machine, world_size)

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

    def add_hierarchical(self) -> None:
        """Adds the hierarchical exchange.

        Each rank exchanges messages only with the ranks of its machine, and with the ranks at its own
        position in other machines. From the ranks of its machine, it
        collects the keys that the latter own. It requests these keys, and distributes the rows.
        Gradients take the same path."""
        workload = self._workload
        inside = _spread(workload.num_keys, self._inside.size)
        collected = round(workload.num_keys * (1 - workload.shared_share))
        stream = self._stream(self._across, max(1, collected))
        seconds = self._compute.add_seconds_per_row if self._inside.size > 1 else 0.0
        combining = workload.num_keys * seconds
        self._add_both_headers()
        self._add_all_to_all(self._inside, self._key_bytes(inside))
        self._add(Computing, combining)
        self._add(PullPhase, stream)
        self._add_all_to_all(self._inside, self._row_bytes(inside), self._moving(inside))
        self._add_both_headers()
        self._add_all_to_all(self._inside, self._gradient_bytes(inside), self._moving(inside))
        self._add(Computing, combining)
        self._add(PushPhase, stream)
        self._add_both_headers()

    def _add(self, phase: Callable[..., Phase], *arguments: object) -> None:
        self.phases.append(phase(self._rank, len(self.phases), *arguments))

    def _add_headers(self, group: Group) -> None:
        self._add(AllToAll, group, [_HEADER_BYTES] * (group.size - 1))

    def _add_both_headers(self) -> None:
        self._add_headers(self._inside)
        self._add_headers(self._across)

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
