"""Simulates the time of one step of a plan: replays it message by message, or sums its costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparring_plan.planning.costs.costs import RESOURCES
from sparring_plan.planning.inputs import Calibration, PlanInputs, Topology
from sparring_plan.planning.search.placement import Placement
from sparring_plan.simulation.clock import compute_covered_seconds
from sparring_plan.simulation.cluster import Cluster, Group, Phase, Rank
from sparring_plan.simulation.model import Network
from sparring_plan.simulation.phases import AllToAll, Computing
from sparring_plan.simulation.ring import Parts, PullPhase, PushPhase, Stream
from sparring_plan.simulation.traffic import PlanTraffic, compute_traffic

__all__ = ["PlanStep", "is_replayed", "simulate_plan"]

_MAX_MESSAGES = 100_000
"""Steps with more messages are not replayed, because each message takes this process about 20 µs,
plus a few µs per table in the message."""
_TABLES_OF_A_MESSAGE = 20
_MIN_MESSAGES = 4
"""Messages to each other rank in any plan: headers and gradients."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """The step of a plan. Bytes and messages are those that the busiest rank sends.

    Args:
        num_keys: Distinct keys of a rank's batch, over all tables.
        seconds: Time from the first header of a pull to the last row written, without dense layers.
        method: ``replay``: every message is simulated; ``linear``: maximum time that a rank needs of
            a resource.
        bound_by: Resource that limits the busiest rank; see `RESOURCES`.
        wire_share, compute_share, message_share, idle_share: Shares of the slowest rank's step, as in
            `SimulatedStep`; None if nothing was replayed.
    """

    seconds: float
    method: str
    bound_by: str
    num_keys: int
    sent_bytes: int
    far_bytes: int
    num_messages: int
    wire_share: float | None = None
    compute_share: float | None = None
    message_share: float | None = None
    idle_share: float | None = None


def simulate_plan(
    placement: Placement,
    inputs: PlanInputs,
    calibration: Calibration,
    *,
    has_one_core: bool | None = None,
    max_messages: int = _MAX_MESSAGES,
) -> PlanStep:
    """Simulates a step: headers, pull, pooling, headers, push, headers, update.

    If ranks own different shares, all ranks are replayed; otherwise, the ranks of one node represent
    all. For steps with too many messages, the costs are summed, as in the planner. The result is
    deterministic.

    Args:
        has_one_core: Whether a rank computes and transfers its messages on one core, without overlap;
            by default, according to the cores of the topology.
        max_messages: Maximum number of messages to replay.
    """
    traffic = compute_traffic(placement, inputs, calibration)
    sent = traffic.sent
    bound_by = RESOURCES[int(np.argmax(placement.load.max(axis=0)))]
    step = PlanStep(
        placement.seconds,
        "linear",
        bound_by,
        traffic.num_keys,
        int(sent.total.max(initial=0)),
        int(sent.far.max(initial=0)),
        int(sent.messages.max(initial=0)),
    )
    if not _is_affordable(traffic, max_messages):
        return step
    if has_one_core is None:
        has_one_core = inputs.topology.has_one_core
    return _replay(step, traffic, inputs.topology, has_one_core=has_one_core)


def is_replayed(placement: Placement, max_messages: int) -> bool:
    """Estimates quickly whether a step is replayed. Returns False if the number of messages with
    headers, keys, rows and gradients exceeds the limit."""
    options = placement.options
    ranks = options.num_ranks if placement.owns.any() else options.ranks_per_node
    return ranks * (options.num_ranks - 1) * _MIN_MESSAGES <= max_messages


def _is_affordable(traffic: PlanTraffic, max_messages: int) -> bool:
    messages = traffic.num_messages
    if traffic.is_alike:
        messages = messages // traffic.num_ranks * traffic.ranks_per_node
    return messages * (1 + traffic.num_tables / _TABLES_OF_A_MESSAGE) <= max_messages


def _replay(
    step: PlanStep, traffic: PlanTraffic, topology: Topology, *, has_one_core: bool
) -> PlanStep:
    cluster = Cluster(
        traffic.num_ranks,
        Network(
            topology.far.latency_us * 1e-6,
            topology.far.gbit * 125e6,
            topology.message_us * 1e-6,
            topology.ranks_per_node,
            topology.near.latency_us * 1e-6,
            topology.near.gbit * 125e6,
        ),
        num_machines=1 if traffic.is_alike else topology.nodes,
        has_one_core=has_one_core,
    )
    for rank in cluster.ranks:
        phases = _phases(rank, traffic)
        cluster.clock.at(0.0, lambda rank=rank, phases=phases: rank.begin(phases))  # type: ignore[misc]
    cluster.clock.run()
    slowest = max(cluster.ranks, key=lambda each: each.ended_at)
    seconds = slowest.ended_at
    machine = slowest.number // topology.ranks_per_node
    links = [
        cluster.links_out[machine],
        cluster.links_in[machine],
        slowest.near_out,
        slowest.near_in,
    ]

    def share(busy: float) -> float:
        return float(busy / seconds) if seconds else 0.0

    return PlanStep(
        float(seconds),
        "replay",
        step.bound_by,
        step.num_keys,
        step.sent_bytes,
        step.far_bytes,
        step.num_messages,
        share(compute_covered_seconds(links)),
        share(compute_covered_seconds([slowest.lane])),
        share(compute_covered_seconds([slowest.driver])),
        1 - share(compute_covered_seconds([*links, slowest.lane, slowest.driver])),
    )


def _phases(rank: Rank, traffic: PlanTraffic) -> list[Phase]:
    everyone = Group(traffic.num_ranks, 1, traffic.num_ranks)
    others, phases = traffic.num_ranks - 1, list[Phase]()

    def all_to_all(num_bytes: int) -> None:
        phases.append(AllToAll(rank, len(phases), everyone, [num_bytes] * others))

    def computing(seconds: float) -> None:
        if seconds > 0:
            phases.append(Computing(rank, len(phases), seconds))

    def stream(parts: Sequence[Parts]) -> Stream:
        # At hop h, the rank requests keys from the h-th rank after it. Each rank sends equal
        # requests.
        # If all ranks own equal shares, sizes are rounded per hop, so that one rank represents all.
        first = 0 if traffic.is_alike else rank.number
        asked = [*parts[first:], *parts[:first]]
        served = asked if traffic.is_alike else [parts[rank.number]] * len(parts)
        return Stream(everyone, asked, served, traffic.chunks_in_flight)

    for exchange in traffic.exchanges:
        if exchange.pull_header_bytes:
            all_to_all(exchange.pull_header_bytes)
            phases.append(PullPhase(rank, len(phases), stream(exchange.pull)))
    computing(traffic.local_seconds)
    for exchange in traffic.exchanges:
        all_to_all(exchange.push_header_bytes)
        phases.append(PushPhase(rank, len(phases), stream(exchange.push)))
    if traffic.replica_bytes:
        all_to_all(traffic.replica_bytes)
        computing(traffic.adding_seconds)
    all_to_all(traffic.commit_header_bytes)
    computing(float(traffic.update_seconds[rank.number]))
    return phases
