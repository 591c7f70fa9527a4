"""Parameters of a simulation: the network, the processors, and the exchanges of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum

from sparring import ExchangeOptions
from sparring.errors import InvalidArgumentError

__all__ = ["Compute", "Network", "SimulatedSchedule", "Workload"]

MAX_RANKS = 4096


class SimulatedSchedule(Enum):
    """In what order ranks find, send and receive."""

    RING = "ring"
    """The ring of pairs, as `sparring.exchange` runs it."""
    SEQUENTIAL = "sequential"
    """Everything is found, then one all-to-all; as `benchmarks/sequential.py` runs it."""
    HIERARCHICAL = "hierarchical"
    """Within machines first, then a ring of machines. Exists in the simulation only."""


@dataclass(frozen=True, slots=True)
class Network:
    """How long messages take.

    A message of n bytes between machines leaves after ``n / bytes_per_second``, once the sender's
    link is free, and its first byte arrives `latency_seconds` after it left. Ranks of one machine
    share its link, one link each way. Among themselves they have links of their own.

    Args:
        latency_seconds: from machine to machine.
        bytes_per_second: of the link of each machine, each way.
        message_seconds: what a message costs the thread that sends it, and the one that takes it.
        ranks_per_machine: ranks that share a link; must divide the number of ranks.
        machine_latency_seconds: between ranks of one machine.
        machine_bytes_per_second: of one rank's link to others of its machine.
    """

    latency_seconds: float = 20e-6
    bytes_per_second: float = 1.25e9
    message_seconds: float = 20e-6
    ranks_per_machine: int = 1
    machine_latency_seconds: float = 2e-6
    machine_bytes_per_second: float = 5e9

    def __post_init__(self) -> None:
        _check_numbers(self, positive=("bytes_per_second", "machine_bytes_per_second"))
        if self.ranks_per_machine < 1:
            raise InvalidArgumentError(
                f"simulation: ranks_per_machine must be at least 1, found {self.ranks_per_machine}"
            )


@dataclass(frozen=True, slots=True)
class Compute:
    """How long a rank's processor takes for each row.

    Args:
        find_seconds_per_row: to find a row in a storage; on the execution pool.
        add_seconds_per_row: to add a gradient to the sum of its key; on the execution pool.
        move_seconds_per_row: to write a row into a message or take it out; on the driving thread.
    """

    find_seconds_per_row: float = 100e-9
    add_seconds_per_row: float = 100e-9
    move_seconds_per_row: float = 20e-9

    def __post_init__(self) -> None:
        _check_numbers(self)


@dataclass(frozen=True, slots=True)
class Workload:
    """Exchanges of one step: one table, whose keys are spread evenly over all ranks.

    Args:
        ids_per_rank: ids in the batch of a rank.
        unique_share: how many of them are left when repeats are gone, from 0 to 1.
        dim: elements of an embedding, float32 in the table.
        wire_dtype: what rows and gradients travel as.
        chunk_rows: the most keys in a message of a ring.
        chunks_in_flight: the most chunks under way each way.
        shared_share: share of a rank's keys that another rank of its machine has too, so that they
            need not be requested again, from 0 to 1; only the hierarchical exchange gains from it.
    """

    ids_per_rank: int = 262_144
    unique_share: float = 0.5
    dim: int = 64
    wire_dtype: str = "exact"
    chunk_rows: int = 4096
    chunks_in_flight: int = 8
    shared_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ids_per_rank", "dim", "chunk_rows", "chunks_in_flight"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(
                    f"simulation: {name} must be at least 1, found {getattr(self, name)}"
                )
        for name in ("unique_share", "shared_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidArgumentError(
                    f"simulation: {name} must be from 0 to 1, found {getattr(self, name)}"
                )
        ExchangeOptions(row_wire_dtype=self.wire_dtype)  # raises unless it is one of the exchange

    @property
    def num_keys(self) -> int:
        """Unique keys of a rank."""
        return max(1, round(self.ids_per_rank * self.unique_share))


def check_world(world_size: int, network: Network) -> None:
    """Raises `InvalidArgumentError` for ranks that do not fill machines."""
    if not 1 <= world_size <= MAX_RANKS:
        raise InvalidArgumentError(
            f"simulation: ranks must be from 1 to {MAX_RANKS:,}, found {world_size}"
        )
    if world_size % network.ranks_per_machine:
        raise InvalidArgumentError(
            f"simulation: {world_size} ranks do not fill machines of {network.ranks_per_machine}; "
            "choose a number of ranks that ranks_per_machine divides"
        )


def _check_numbers(what: Network | Compute, positive: tuple[str, ...] = ()) -> None:
    for field in fields(what):
        value = getattr(what, field.name)
        is_wrong = value <= 0 if field.name in positive else value < 0
        if is_wrong or not math.isfinite(value):
            least = "positive" if field.name in positive else "at least 0"
            raise InvalidArgumentError(
                f"simulation: {field.name} must be {least} and finite, found {value}"
            )
