"""Simulated times equal manual computations, and simulated ranks equal a whole cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparring.errors import InvalidArgumentError
from sparring.exchange import pull
from sparring_plan.simulation import ring
from sparring_plan.simulation.calibration import Calibration, calibrate
from sparring_plan.simulation.cluster import Cluster
from sparring_plan.simulation.model import Compute, Network, SimulatedSchedule, Workload
from sparring_plan.simulation.replay import SimulatedStep, replay, simulate

RING, SEQUENTIAL, TWO_LEVELS = SimulatedSchedule
FREE = Compute(0.0, 0.0, 0.0)
HEADER, SHAPE = 512, 72


def network(bytes_per_second: float, latency_seconds: float = 0.0, **others: float) -> Network:
    return replace(Network(latency_seconds, bytes_per_second, 0.0), **others)


def load(num_keys: int, **others: int | float | str) -> Workload:
    return replace(Workload(num_keys, 1.0, 1), **others)  # type: ignore[arg-type]


def test_two_ranks_take_the_manually_computed_time() -> None:
    # 10 keys, 5 for the other rank. Each message waits for the previous one.
    keys, rows, gradients = 5 * 8, 32, 64  # 5 * (4 + 1) and 5 * (8 + 4), on multiples of 8
    expected = sum(1 + each / 1000 for each in (HEADER, keys, rows, HEADER, gradients, HEADER))
    step = simulate(RING, 2, network(1000, 1.0), FREE, load(10))
    assert step.seconds == pytest.approx(expected)
    assert step.wire_bytes == 3 * HEADER + keys + rows + gradients
    assert step.num_messages == 6
    # Each message takes a second; at each end its bytes occupy a link for a while.
    assert step.idle_share == pytest.approx((6 - step.wire_bytes / 1000) / expected)
    step = simulate(SEQUENTIAL, 2, network(1000, 1.0), FREE, load(10))
    assert step.seconds == pytest.approx(expected + 3 * (1 + SHAPE / 1000))


def test_rows_are_found_while_others_are_sent() -> None:
    # Chunks of one key: 1 s on the wire as keys, 1 s as rows, 2 s as gradients; 1 s to find.
    #  finds     own  own  c0   c1
    #  link out  k0   k1   -    r0   r1       c0 is found at the third second, sent in the fourth
    slow = Compute(find_seconds_per_row=1.0, add_seconds_per_row=0.0, move_seconds_per_row=0.0)
    step = simulate(RING, 2, network(8), slow, load(4, chunk_rows=1))
    assert step.seconds == pytest.approx(3 * HEADER / 8 + 5 + 4)
    # In sequence: 2 s keys, 4 s finds, 16 bytes of rows, 24 of gradients.
    step = simulate(SEQUENTIAL, 2, network(8), slow, load(4, chunk_rows=1))
    assert step.seconds == pytest.approx(3 * (HEADER + SHAPE) / 8 + 2 + 4 + 2 + 3)


def test_without_links_a_step_takes_as_long_as_its_finds_and_sums() -> None:
    busy = Compute(find_seconds_per_row=1.0, add_seconds_per_row=2.0, move_seconds_per_row=0.0)
    step = simulate(RING, 4, network(1e15), busy, load(40))
    assert step.seconds == pytest.approx(40 * 3)
    assert step.compute_share == pytest.approx(1)


def test_few_chunks_in_flight_wait_for_the_round_trip() -> None:
    def pull(chunks_in_flight: int) -> float:
        slow = network(1e12, 1.0)
        workload = load(16, chunk_rows=1, chunks_in_flight=chunks_in_flight)
        return simulate(RING, 2, slow, FREE, workload).seconds

    # 8 chunks: keys there and rows back take 2 s, gradients 1 s; three rounds of headers.
    assert pull(8) == pytest.approx(3 + 2 + 1, abs=1e-6)
    assert pull(1) == pytest.approx(3 + 8 * 2 + 1, abs=1e-6)


def test_messages_cost_the_threads_at_both_ends() -> None:
    costly = replace(network(1e15), message_seconds=1.0)
    # Three headers are sent, then received; the other exchanges are one message in each direction.
    step = simulate(SEQUENTIAL, 4, costly, FREE, load(40))
    assert step.seconds == pytest.approx(9 * (3 + 3))
    assert step.message_share == pytest.approx(1)


@pytest.mark.parametrize("schedule", SimulatedSchedule)
def test_one_machine_represents_all(schedule: SimulatedSchedule) -> None:
    slow = Network(30e-6, 1e8, 5e-6, 2, 1e-6, 1e9)
    workload = Workload(3000, 0.9, 8, "int8", 100, 3)
    cluster = Cluster(12, slow, num_machines=6)
    assert replay(schedule, cluster, Compute(), workload) == simulate(
        schedule, 12, slow, Compute(), workload
    )
    ended = [rank.ended_at for rank in cluster.ranks]
    assert ended[::2] == [ended[0]] * 6
    assert ended[1::2] == [ended[1]] * 6


@pytest.mark.parametrize("ranks_per_machine", [1, 8])
def test_two_levels_on_one_machine_or_with_one_rank_each_are_the_ring(
    ranks_per_machine: int,
) -> None:
    shape, workload = Network(ranks_per_machine=ranks_per_machine), Workload(10_000, 0.5)
    ring = simulate(RING, 8, shape, Compute(), workload)
    assert simulate(TWO_LEVELS, 8, shape, Compute(), workload) == replace(ring, schedule=TWO_LEVELS)


def test_two_levels_take_the_manually_computed_time() -> None:
    # Two machines of two ranks. The first rank of each leads, and exchanges with the other one 2 x 2
    # messages together, and its own headers; each of its six rounds passes three links.
    far, near = 1000, 4000
    shape = network(far, 1.0, ranks_per_machine=2, machine_bytes_per_second=near)
    step = simulate(TWO_LEVELS, 4, replace(shape, machine_latency_seconds=0.5), FREE, load(16))
    keys, rows, gradients = 4 * 8, 24, 48  # 4 * (4 + 1) and 4 * (8 + 4), on multiples of 8
    seconds = 0.0
    for part in (HEADER, keys, rows, HEADER, gradients, HEADER):
        own_header = HEADER if part == HEADER else 0
        # Its own message, then two for the other machine; then the other machine's two for it.
        seconds += (
            0.5 + 3 * part / near + 1.0 + (4 * part + own_header) / far + 0.5 + 2 * part / near
        )
    assert step.seconds == pytest.approx(seconds)
    assert step.num_messages == 6 * (1 + 1 + 1) + 3


def test_two_levels_send_the_same_bytes_in_fewer_messages() -> None:
    def step(schedule: SimulatedSchedule) -> SimulatedStep:
        return simulate(schedule, 256, Network(ranks_per_machine=8), Compute(), Workload(8192))

    ring, two_levels = step(RING), step(TWO_LEVELS)
    assert two_levels.num_messages < ring.num_messages / 6
    assert two_levels.seconds < ring.seconds / 2
    # The first rank leads for one machine more than the average.
    assert two_levels.wire_bytes == pytest.approx(ring.wire_bytes * 4 * 8 / 31, rel=0.05)


def test_a_simulation_rejects_invalid_settings() -> None:
    with pytest.raises(InvalidArgumentError, match="9 ranks do not fill machines of 2"):
        simulate(RING, 9, Network(ranks_per_machine=2), Compute(), Workload())
    with pytest.raises(InvalidArgumentError, match="bytes_per_second must be positive"):
        Network(bytes_per_second=0)
    with pytest.raises(InvalidArgumentError, match="unique_share must be from 0 to 1, found 2"):
        Workload(unique_share=2)
    with pytest.raises(InvalidArgumentError, match="wire_dtype must be one of exact, float32"):
        Workload(wire_dtype="int4")


def test_a_machine_determines_the_costs_of_rows_and_messages() -> None:
    found: Calibration = calibrate(8, "memory")
    # Which of them is larger depends on the load of the machine.
    for each in (found.move_seconds_per_row, found.find_seconds_per_row, found.add_seconds_per_row):
        assert 0 < each < 1e-3
    assert 1e-7 < found.message_seconds < 1e-2


def test_the_simulated_ring_finds_as_many_chunks_at_once_as_the_real_one() -> None:
    assert ring.MAX_FINDS == pull.MAX_FINDS
