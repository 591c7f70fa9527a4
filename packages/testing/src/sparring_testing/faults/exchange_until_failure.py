"""A rank that exchanges data in an endless loop, for tests that kill or stop ranks.

    python -m sparring_testing.faults.exchange_until_failure BACKEND OPTIONS DEADLINE FOLDER

The launcher's environment variables specify the rank. OPTIONS is JSON. After a few exchanges it writes
its process id to ``RANK.started`` in FOLDER. When `PeerFailure` is raised, it writes the attributes of
the error and the time as JSON to ``RANK.failed``, and exits with the uncaught error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from sparring import make_plugin_manager
from sparring.adapter import EnvironmentRendezvous
from sparring.contracts import Collective, EnvironmentOptions, WorkContext, validate_options
from sparring.errors import PeerFailure

__all__ = ["exchange_until_failure"]

TABLE = "user"
_STEPS_TO_START = 20


def exchange_until_failure(collective: Collective, folder: Path) -> None:
    """Calls `all_to_all` with parts of random sizes, small and large, until it raises."""
    rng = np.random.default_rng(collective.rank)
    step = 0
    try:
        while True:
            collective.context = WorkContext("all_to_all", TABLE, step)
            sizes = rng.choice([0, 10, 1000, 300_000], collective.world_size)
            collective.all_to_all([np.zeros(size, np.float32) for size in sizes])
            step += 1
            if step == _STEPS_TO_START:
                _write(folder / f"{collective.rank}.started", str(os.getpid()))
    except PeerFailure as error:
        failed = {
            "rank": error.rank,
            "operation": error.operation,
            "table": error.table,
            "step": error.step,
            "message": str(error),
            "time": time.time(),
        }
        _write(folder / f"{collective.rank}.failed", json.dumps(failed))
        raise


def _write(path: Path, text: str) -> None:
    """Writes to a temporary file and renames it, so a reader never sees a partial text."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


def _main(backend: str, options: str, deadline_seconds: str, folder: str) -> None:
    membership = EnvironmentRendezvous(EnvironmentOptions()).membership()
    descriptor = make_plugin_manager().collective(backend)
    checked = validate_options("collective", descriptor, json.loads(options))
    with descriptor.factory(membership, checked, float(deadline_seconds)) as collective:
        exchange_until_failure(collective, Path(folder))


if __name__ == "__main__":
    _main(*sys.argv[1:])
