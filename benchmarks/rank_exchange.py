"""One rank of the benchmark `ranks`: steps with the ring and without overlap, or messages of MPI only.

Started by `benchmarks.ranks` with one argument, JSON. Rank 0 writes JSON to the file `output`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sequential import EXCHANGES
from sparring import StepContainer
from sparring.adapter import EnvironmentRendezvous, parse_hyper, resolve_method
from sparring.contracts import Collective, EnvironmentOptions, MethodChoice, TableConfig

__all__ = ["join", "slowest_of_each_round"]

DEADLINE_SECONDS = 60.0


def join(kind: str, rendezvous: EnvironmentRendezvous) -> Collective:
    """Returns a separate collective; all ranks must call it in the same order."""
    if kind.startswith("shm"):
        from sparring_shm.meeting import connect_local_ranks

        return connect_local_ranks(join("torch" if kind == "shm+torch" else "mpi", rendezvous))
    if kind == "mpi":
        from sparring_mpi.collective import join_mpi

        return join_mpi(rendezvous.membership(), DEADLINE_SECONDS)
    from sparring_torch.distributed.collective import join_torch
    from sparring_torch.distributed.options import TorchCollectiveOptions

    return join_torch(rendezvous.membership(), TorchCollectiveOptions(), DEADLINE_SECONDS)


def slowest_of_each_round(
    collective: Collective, contenders: dict[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Returns the seconds of the slowest rank in each round, per contender. Contenders alternate; each
    starts when all ranks are ready."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-2, rounds):
        for name, run in contenders.items():
            collective.barrier()
            begin = time.perf_counter()
            run()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
    return {
        name: np.max(collective.all_gather(np.array(each)), axis=0).tolist()
        for name, each in seconds.items()
    }


def _steps(
    given: dict[str, Any], rendezvous: EnvironmentRendezvous, closing: ExitStack
) -> dict[str, list[float]]:
    meeting = closing.enter_context(join(given["collective"], rendezvous))
    table = TableConfig("item", given["dim"])
    random = np.random.default_rng(meeting.rank)
    batches = [random.integers(0, given["num_ids"] * 8, given["num_ids"]) for _ in range(4)]
    method = resolve_method("sgd")
    choices = {"item": MethodChoice(method, parse_hyper(method, {"lr": 0.1}), 1)}

    def stepping(schedule: str) -> Callable[[], object]:
        container = StepContainer(
            collective=join(given["collective"], rendezvous),
            rendezvous=rendezvous,
        )
        container.exchange.__class__ = EXCHANGES[schedule]
        closing.enter_context(container)
        container.declare(table)
        container.set_state("item", np.empty(0, np.float32), "sgd")
        container.storage("item")
        turns = iter(range(1 << 30))

        def step() -> None:
            found = container.lookup("item", batches[next(turns) % len(batches)])
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
            container.apply_methods(choices)

        return step

    contenders = {schedule: stepping(schedule) for schedule in EXCHANGES}
    return slowest_of_each_round(meeting, contenders, given["rounds"])


def _bandwidth(
    given: dict[str, Any], rendezvous: EnvironmentRendezvous, closing: ExitStack
) -> dict[str, list[float]]:
    """Sends `num_bytes` from each rank to the next: with MPI only, and with the collective."""
    from mpi4py import MPI

    meeting = closing.enter_context(join("mpi", rendezvous))
    collective = closing.enter_context(join("mpi", rendezvous))
    world = MPI.COMM_WORLD.Dup()
    rank, world_size = meeting.rank, meeting.world_size
    outgoing = np.ones(given["num_bytes"], np.uint8)
    incoming = np.zeros(given["num_bytes"], np.uint8)
    after, before = (rank + 1) % world_size, (rank - 1) % world_size

    def raw() -> None:
        requests = [world.Irecv(incoming, before), world.Isend(outgoing, after)]
        MPI.Request.Waitall(requests)

    def ours() -> None:
        works = [collective.receive(incoming, before), collective.send(outgoing, after)]
        for work in works:
            work.wait()

    return slowest_of_each_round(meeting, {"raw": raw, "ours": ours}, given["rounds"])


def main() -> None:
    """Runs the measurements that the argument specifies."""
    asked = json.loads(sys.argv[1])
    rendezvous = EnvironmentRendezvous(EnvironmentOptions())
    with ExitStack() as closing:
        measure = {"steps": _steps, "bandwidth": _bandwidth}[asked["what"]]
        measured = measure(asked, rendezvous, closing)
    if rendezvous.membership().rank == 0:
        Path(asked["output"]).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
