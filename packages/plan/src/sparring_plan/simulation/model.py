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
    """Order in which ranks find, send and receive."""

    RING = "ring"
    """The ring exchange, as in `sparring.exchange`."""
    SEQUENTIAL = "sequential"
    """Finds everything, then one all-to-all, as in `benchmarks/sequential.py`."""
    TWO_LEVELS = "two_levels"
    """The ring exchange if messages between machines are sent in two levels, as in
    `sparring.exchange.two_levels`."""


@dataclass(frozen=True, slots=True)
class Network:
    """Timing of messages.

    A message of n bytes between machines occupies the sender's link for ``n / bytes_per_second``,
    starting when the link is free. Its first byte arrives `latency_seconds` after it left. The
    ranks of one machine share its link, one in each direction. Within a machine, ranks have
    separate links.

    Args:
        latency_seconds: Latency between machines.
        bytes_per_second: Bandwidth of the link of each machine, in each direction.
        message_seconds: Time of the sending thread and of the receiving thread per message.
        ranks_per_machine: Number of ranks that share a link; must divide the number of ranks.
        machine_latency_seconds: Latency between ranks of one machine.
        machine_bytes_per_second: Bandwidth of a rank's link to others of its machine.
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
    """Processor time of a rank per row.

    Args:
        find_seconds_per_row: Time to find a row in a storage, on the execution pool.
        add_seconds_per_row: Time to add a gradient to the sum of its key, on the execution pool.
        move_seconds_per_row: Time to write a row to a message or to read it, on the driving thread.
    """

    find_seconds_per_row: float = 100e-9
    add_seconds_per_row: float = 100e-9
    move_seconds_per_row: float = 20e-9

    def __post_init__(self) -> None:
        _check_numbers(self)


@dataclass(frozen=True, slots=True)
class Workload:
    """Exchanges of one step: one table, whose keys are distributed evenly over all ranks.

    Args:
        ids_per_rank: Number of ids in the batch of a rank.
        unique_share: Share of distinct ids, from 0 to 1.
        dim: Elements of an embedding, float32 in the table.
        wire_dtype: Data type of rows and gradients in messages.
        chunk_rows: Maximum number of keys per message of a ring.
        chunks_in_flight: Maximum number of chunks in flight in each direction.
    """

    ids_per_rank: int = 262_144
    unique_share: float = 0.5
    dim: int = 64
    wire_dtype: str = "exact"
    chunk_rows: int = 4096
    chunks_in_flight: int = 8

    def __post_init__(self) -> None:
        for name in ("ids_per_rank", "dim", "chunk_rows", "chunks_in_flight"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(
                    f"simulation: {name} must be at least 1, found {getattr(self, name)}"
                )
        if not 0 <= self.unique_share <= 1:
            raise InvalidArgumentError(
                f"simulation: unique_share must be from 0 to 1, found {self.unique_share}"
            )
        ExchangeOptions(
            row_wire_dtype=self.wire_dtype
        )  # raises if the exchange does not support it

    @property
    def num_keys(self) -> int:
        """Number of distinct keys per rank."""
        return max(1, round(self.ids_per_rank * self.unique_share))


def check_world(world_size: int, network: Network) -> None:
    """Raises `InvalidArgumentError` if the ranks do not fill machines."""
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
