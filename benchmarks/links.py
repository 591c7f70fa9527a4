"""The ring compared with `sequential`, with processes over gloo on TCP links of 1 Gbit/s.

Each rank has a separate network namespace and a link whose bandwidth the kernel limits. Storages wait as
long for rows as the transfer takes. Benchmark `exchange` measures the same with simulated links.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.link_rank import TABLE
from benchmarks.measuring import Figure
from benchmarks.overlap import excess_figure, ratio_figure
from benchmarks.scale import Scale
from sparring_testing.faults.isolated_links import (
    INTERFACE,
    IsolatedLinks,
    why_isolation_is_unavailable,
)

__all__ = ["measure", "run_on_hosts"]

WORLD_SIZE, NUM_KEYS, ROUNDS = 4, 200_000, 5
BITS_PER_SECOND = 10**9
SECONDS = 300
ROOT = Path(__file__).resolve().parents[1]


def measure(scale: Scale) -> list[Figure]:
    """Returns the median round of the slowest rank; schedules alternate.

    Only the transfer is measured too, as `sequential` with storages that take no time, because links
    also carry headers and acknowledgements.
    """
    what = f"pull over TCP, {WORLD_SIZE} processes, links of 1 Gbit/s, equally slow lookup"
    reason = why_isolation_is_unavailable()
    if reason is not None:
        return [Figure(what=what, value="not measured", detail=reason)]
    num_keys = scale.rows(NUM_KEYS)
    rounds = scale.rounds(ROUNDS)
    transfer = _seconds("sequential", num_keys, rounds, 0.0)["sequential"]
    # Each rank finds as many rows as it requests, including its own.
    found = _seconds("ring,sequential", num_keys, rounds, transfer / num_keys)
    wire_bytes = num_keys * (WORLD_SIZE - 1) // WORLD_SIZE * (8 + TABLE.dim * 4 + 1)
    return [
        ratio_figure(what, found, f"; {num_keys:,} rows x {TABLE.dim}"),
        excess_figure(
            found,
            transfer,
            f"{transfer * 1e3:.0f} ms each: only the transfer, "
            f"{wire_bytes * 8 / transfer / 1e6:.0f} Mbit/s each way",
        ),
    ]


def _seconds(
    schedules: str, num_keys: int, rounds: int, seconds_per_row: float
) -> dict[str, float]:
    """Returns the seconds of a pull of each schedule."""
    with (
        tempfile.TemporaryDirectory() as folder,
        IsolatedLinks(WORLD_SIZE, BITS_PER_SECOND) as links,
    ):
        arguments = [schedules, str(num_keys), str(rounds), repr(seconds_per_row)]
        rank_command = [
            sys.executable,
            "-m",
            "benchmarks.link_rank",
            *arguments,
            f"{folder}/meeting",
        ]
        times: dict[str, list[float]] = run_on_hosts(links, range(WORLD_SIZE), rank_command)
    return {schedule: median(rounds) for schedule, rounds in times.items()}


def run_on_hosts(links: IsolatedLinks, hosts: Sequence[int], command: Sequence[str]) -> Any:
    """Runs one process per rank, and returns what the first rank prints as JSON.

    Args:
        links: the hosts.
        hosts: host of each rank.
        command: command of each rank.
    """
    processes = [
        subprocess.Popen(
            links.command(host, command),
            cwd=ROOT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return json.loads(said[0])
