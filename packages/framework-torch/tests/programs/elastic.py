"""A program that torchrun restarts when a node leaves; it resumes from its last snapshot.

Arguments: a folder, and the number of steps. Each start records its ranks; all ranks save after each
step.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sparring import StepContainer, Uniform, join_job, make_plugin_manager
from sparring.adapter import AUTO, parse_hyper, resolve_method
from sparring.contracts import MethodChoice, Reduction, TableConfig

KEYS = np.arange(-30, 30)


@dataclass(frozen=True)
class Choice:
    """The defaults of sparring."""

    backend: str = AUTO
    options: dict[str, Any] = field(default_factory=dict)


def main(folder: Path, num_steps: int) -> None:
    manager = make_plugin_manager()
    method = resolve_method("adagrad")
    choice = MethodChoice(method, parse_hyper(method, {"lr": 0.125}), 1)
    joined = join_job(
        Choice(), Choice(), framework="torch", deadline_seconds=20.0, plugin_manager=manager
    )
    with joined as job, StepContainer(
        collective=job.collective,
        rendezvous=job.rendezvous,
        reduction=Reduction.SUM,
        plugin_manager=manager,
    ) as container:  # fmt: skip
        rank, size = job.collective.rank, job.collective.world_size
        container.declare(TableConfig("user", 4, initializer=Uniform(-1, 1), seed=5))
        container.set_state("user", np.zeros(4, np.float32), "adagrad")
        job.collective.barrier()
        first = 0
        saved = sorted(folder.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
        if saved:
            container.load(str(saved[-1]))
            first = int(saved[-1].name.partition("-")[2])
        if rank == 0:
            with (folder / "starts").open("a") as file:
                file.write(json.dumps([size, first]) + "\n")
        job.collective.barrier()
        for step in range(first, num_steps):
            random = np.random.default_rng(step)
            ids = random.integers(-30, 30, 24)
            # Sums of these are exact in any order, so the number of ranks does not matter.
            numbers = random.integers(-64, 65, (24, 4)) / np.float32(64)
            mine = slice(rank, None, size)
            found = container.lookup("user", ids[mine])
            sums = np.zeros(found.rows.shape, np.float32)
            np.add.at(sums, found.inverse, numbers[mine])
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, sums)
            container.apply_methods({"user": choice})
            container.save(str(folder / f"step-{step + 1}"))
            if size > 1:
                # Leaves time to stop the process.
                time.sleep(0.3)
        read = container.lookup("user", KEYS, is_registered=False)
        if rank == 0:
            (folder / "rows").write_bytes(read.rows[read.inverse].tobytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
