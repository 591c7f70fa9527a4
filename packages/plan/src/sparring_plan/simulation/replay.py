"""Replays one step in simulated time."""

from __future__ import annotations

from dataclasses import dataclass

from sparring_plan.simulation.clock import compute_covered_seconds
from sparring_plan.simulation.cluster import Cluster
from sparring_plan.simulation.model import (
    Compute,
    Network,
    SimulatedSchedule,
    Workload,
    check_world,
)
from sparring_plan.simulation.schedules import make_phases

__all__ = ["SimulatedStep", "simulate"]


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """Time of a step on one rank. Shares are relative to `seconds` and overlap, except `idle_share`."""

    schedule: SimulatedSchedule
    world_size: int
    seconds: float
    """Time from the first header of a pull to the last one before rows are written, without dense
    layers."""
    wire_share: float
    """Share in which a link of the first machine, or of its first rank, was busy."""
    compute_share: float
    """Share in which the first rank found rows or added gradients."""
    message_share: float
    """Share in which its driving thread sent or received messages, or packed or placed rows."""
    idle_share: float
    """Share without any of these, because of latency or waiting."""
    wire_bytes: int
    """Bytes that the first rank sent to ranks of other machines, including headers."""
    machine_bytes: int
    """Bytes that it sent to ranks of its machine."""
    num_messages: int
    """Number of messages that it sent."""


def simulate(
    schedule: SimulatedSchedule,
    world_size: int,
    network: Network,
    compute: Compute,
    workload: Workload,
) -> SimulatedStep:
    """Replays one step: headers, pull, headers, push, headers. Deterministic.

    Raises:
        InvalidArgumentError: The ranks do not fill machines, or there are too many.
    """
    return replay(schedule, Cluster(world_size, network), compute, workload)


def replay(
    schedule: SimulatedSchedule, cluster: Cluster, compute: Compute, workload: Workload
) -> SimulatedStep:
    """Like `simulate`, on a new cluster."""
    network, world_size = cluster.network, cluster.world_size
    check_world(world_size, network)
    for rank in cluster.ranks:
        phases = make_phases(
            schedule,
            rank,
            world_size,
            network=network,
            compute=compute,
            workload=workload,
        )
        cluster.clock.at(0.0, lambda rank=rank, phases=phases: rank.begin(phases))  # type: ignore[misc]
    cluster.clock.run()
    first = cluster.ranks[0]
    seconds = max(rank.ended_at for rank in cluster.ranks)
    links = [cluster.links_out[0], cluster.links_in[0], first.near_out, first.near_in]

    def share(busy: float) -> float:
        return busy / seconds if seconds else 0.0

    return SimulatedStep(
        schedule=schedule,
        world_size=world_size,
        seconds=seconds,
        wire_share=share(compute_covered_seconds(links)),
        compute_share=share(compute_covered_seconds([first.lane])),
        message_share=share(compute_covered_seconds([first.driver])),
        idle_share=1 - share(compute_covered_seconds([*links, first.lane, first.driver])),
        wire_bytes=first.far_bytes,
        machine_bytes=first.near_bytes,
        num_messages=first.num_sent,
    )
