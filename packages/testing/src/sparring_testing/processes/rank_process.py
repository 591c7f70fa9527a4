"""One rank of `sparring_testing.processes.rank_processes`.

Started as ``python -m sparring_testing.processes.rank_process ADDRESS``.
"""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing.connection import Client

from sparring import PluginManager, make_plugin_manager
from sparring.adapter import EnvironmentRendezvous
from sparring.contracts import EnvironmentOptions, Membership, validate_options
from sparring_testing.processes.rank_processes import KEY_VARIABLE, Job, Outcome

__all__ = ["serve"]


def serve(address: str) -> None:
    """Runs jobs until the socket at `address` is closed."""
    membership = EnvironmentRendezvous(EnvironmentOptions()).membership()
    manager = make_plugin_manager()
    with Client(address, "AF_UNIX", authkey=os.environ[KEY_VARIABLE].encode()) as connection:
        connection.send(membership.rank)
        while True:
            try:
                job: Job = connection.recv()
            except EOFError:
                return
            connection.send(_do(job, membership.rank, manager))


def _do(job: Job, rank: int, manager: PluginManager) -> Outcome:
    try:
        descriptor = manager.collective(job.backend)
        options = validate_options("collective", descriptor, job.options)
        membership = Membership(rank, job.world_size)
        with descriptor.factory(membership, options, job.deadline_seconds) as collective:
            return Outcome(job.body(collective, *job.arguments))
    # The test gets the traceback of any error, and the process continues with the next job.
    except Exception:
        return Outcome(traceback=traceback.format_exc())


if __name__ == "__main__":
    serve(sys.argv[1])
