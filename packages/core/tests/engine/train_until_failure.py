"""A rank that trains endlessly, for tests that kill, stop or disconnect it.

    python -m …train_until_failure BACKEND OPTIONS DEADLINE FOLDER [HOSTS]

The launcher's variables set the rank; OPTIONS is JSON, and so is HOSTS, the ranks of each host. If HOSTS
are given, messages between them take two levels. After a few steps, the program writes its process
id to ``RANK.started`` in FOLDER. At a failure, it writes the message of `PeerFailure`, the time and its
rows to ``RANK.failed``, and the uncaught exception ends it.

Rows only depend on the step and the rank, so that `rows_after` can compute the rows of an undisturbed
run after as many steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.rendezvous import Rendezvous
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import PeerFailure
from sparring.plugins.option_checks import validate_options
from sparring.plugins.registry import make_plugin_manager
from sparring.rendezvous.environment import EnvironmentOptions, EnvironmentRendezvous
from sparring_testing.processes.table_steps import descend
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

__all__ = ["rows_after"]

Rows = dict[str, dict[str, list[float]]]
"""Table → key → row, as JSON has them."""

DIM = 16
TABLES = tuple(TableConfig(name, DIM, initializer=Uniform(-1, 1)) for name in ("user", "item"))
NUM_IDS, NUM_KEYS = 300, 500
STEPS_TO_START = 10


class _Training:
    def __init__(self, collective: Collective, rendezvous: Rendezvous) -> None:
        self.container = StepContainer(
            collective=collective,
            rendezvous=rendezvous,
            # Many messages, so that a random moment finds each kind of them in flight.
            exchange=ExchangeOptions(chunk_rows=32, chunks_in_flight=2)
            if collective.hosts is None
            else ExchangeOptions(two_levels=True),
        )
        self._rank = collective.rank
        for table in TABLES:
            self.container.declare(table, StorageChoice("memory"))

    def step(self, number: int) -> None:
        random = np.random.default_rng((number, self._rank))
        with self.container.step(descend(0.25)) as step:
            for table in TABLES:
                # From none at all to `NUM_IDS`.
                ids = random.integers(0, NUM_KEYS, random.integers(0, NUM_IDS))
                found = step.lookup(table.name, ids)
                step.accumulate(found, np.ones((len(found.keys), DIM), np.float32))

    def rows(self) -> Rows:
        held: Rows = {}
        for table in TABLES:
            chunks = list(self.container.storage(table.name).scan())
            held[table.name] = {
                str(key): row.tolist()
                for chunk in chunks
                for key, row in zip(chunk.keys.tolist(), chunk.rows, strict=True)
            }
        return held


def rows_after(world_size: int, num_steps: set[int]) -> Mapping[int, list[Rows]]:
    """Returns the rows of each rank after each of the given numbers of steps, without failures."""
    group = LocalGroup(world_size)

    def history(rank: int) -> Iterator[Rows]:
        training = _Training(group.join(rank), ThreadRendezvous(world_size))
        for step in range(max(num_steps) + 1):
            if step in num_steps:
                yield training.rows()
            if step < max(num_steps):
                training.step(step)

    with ThreadPoolExecutor(world_size) as threads:
        histories = list(threads.map(lambda rank: list(history(rank)), range(world_size)))
    return {
        step: [held[place] for held in histories] for place, step in enumerate(sorted(num_steps))
    }


def train_until_failure(collective: Collective, rendezvous: Rendezvous, folder: Path) -> None:
    """Runs steps until one raises."""
    training = _Training(collective, rendezvous)
    number = 0
    try:
        while True:
            training.step(number)
            number += 1
            if number == STEPS_TO_START:
                _write(folder / f"{collective.rank}.started", str(os.getpid()))
    except PeerFailure as error:
        failed = {
            **error.details,
            "message": str(error),
            "time": time.time(),
            "counted": training.container.counters.steps,
            "rows": training.rows(),
        }
        _write(folder / f"{collective.rank}.failed", json.dumps(failed))
        raise


def _write(path: Path, text: str) -> None:
    """Writes a file atomically, so that a reader finds the whole text or no file."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


def _main(
    backend: str, options: str, deadline_seconds: str, folder: str, hosts: str = "null"
) -> None:
    rendezvous = EnvironmentRendezvous(EnvironmentOptions())
    descriptor = make_plugin_manager().collective(backend)
    checked = validate_options("collective", descriptor, json.loads(options))
    with descriptor.factory(
        rendezvous.membership(), checked, float(deadline_seconds)
    ) as collective:
        collective.hosts = json.loads(hosts)
        train_until_failure(collective, rendezvous, Path(folder))


if __name__ == "__main__":
    _main(*sys.argv[1:])
