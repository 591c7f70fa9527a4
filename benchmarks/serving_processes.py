"""Two workers of `sparring serve`, compared with one: processor time per call, and private memory.

Both services serve the same folder and are called alternately: one call at a time, and by all clients at
once, where a single busy process saves wake-ups. Processor time is the sum over all processes of a
service, from /proc. Private memory is measured in a worker after the calls, without the pages of the
tables, which all workers map.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring import StepContainer, StorageChoice, TableConfig
from sparring_serve import ClientConfig, LookupClient
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest

__all__ = ["measure"]

TABLE_ROWS, DIM, IDS, CALLS, ROUNDS, CLIENTS = 500_000, 64, 1_000, 1_500, 7, 8
BAR = 1.1
_TICK = os.sysconf("SC_CLK_TCK")
_READY = re.compile(r"ready on (\S+): ")


@dataclass(frozen=True)
class _Service:
    process: subprocess.Popen[str]
    num_workers: int
    clients: tuple[LookupClient, ...]

    @property
    def pids(self) -> list[int]:
        """Returns the ids of the processes that handle calls."""
        if self.num_workers == 1:
            return [self.process.pid]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return list(map(int, children.split()))

    def processor_seconds(self) -> float:
        """Returns the processor time of all workers so far."""
        fields = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids
        ]
        return sum(int(each[11]) + int(each[12]) for each in fields) / _TICK

    def private_bytes(self) -> float:
        """Returns the median over workers of the memory that is not shared."""
        found = []
        for pid in self.pids:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            private = [each.split()[1] for each in lines if each.startswith("Private_")]
            found.append(1024 * sum(map(int, private)))
        return median(found)


def measure(scale: Scale) -> list[Figure]:
    """Measures ratios of two workers to one."""
    generator = np.random.default_rng(0)
    keys = generator.permutation(scale.rows(TABLE_ROWS)).astype(np.int64) * 7_919
    rows = generator.random((len(keys), DIM), np.float32)
    places = generator.choice(len(keys), min(IDS, len(keys)), replace=False)
    calls = scale.rounds(CALLS)
    with ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory())
        _publish(Path(folder), keys, rows)
        services = [closing.enter_context(_serving(folder, workers)) for workers in (1, 2)]
        for each in services:
            for client in each.clients:
                if not np.array_equal(_pull(client, keys[places]), rows[places]):
                    raise AssertionError("the rows of the service differ from the published ones")
        rounds = scale.rounds(ROUNDS)
        in_turn = _spent(services, keys[places], calls, rounds, 1)
        at_once = _spent(services, keys[places], calls, rounds, CLIENTS)
        memory = [each.private_bytes() for each in services]
    ratio, of_memory = in_turn[1] / in_turn[0], memory[1] / memory[0]
    busy = at_once[1] / at_once[0]
    what = f"{IDS:,} ids x {DIM}: processor time per call, two workers compared with one"
    return [
        Figure(
            f"{what}, one call at a time", f"{ratio:.2f} x", f"<= {BAR}", ratio <= BAR,
            _times(in_turn), ratio,
        ),
        Figure(f"{what}, {CLIENTS} clients at once", f"{busy:.2f} x", None, None, _times(at_once), busy),
        Figure(
            "private memory of a worker, two against one", f"{of_memory:.2f} x", f"<= {BAR}",
            of_memory <= BAR, f"{memory[0] / 2**20:.1f} MiB, {memory[1] / 2**20:.1f} MiB", of_memory,
        ),
    ]  # fmt: skip


def _spent(
    services: list[_Service], ids: Any, calls: int, rounds: int, threads: int
) -> tuple[float, float]:
    """Returns the processor seconds per call of each service; the median of rounds."""
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for each, some in zip(services, found, strict=True):
            before = each.processor_seconds()
            _ask(each, ids, calls, threads)
            # At least one tick, because a small run may have none.
            some.append(max(1 / _TICK, each.processor_seconds() - before) / calls)
    return median(found[0]), median(found[1])


def _times(spent: tuple[float, float]) -> str:
    return f"{spent[0] * 1e6:.0f} us, {spent[1] * 1e6:.0f} us; {os.cpu_count()} cores"


def _pull(client: LookupClient, ids: Any) -> Any:
    return client.pull({"item": ids}).rows["item"]


def _ask(service: _Service, ids: Any, calls: int, threads: int) -> None:
    clients = service.clients
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(lambda call: _pull(clients[call % len(clients)], ids), range(calls)))


def _publish(folder: Path, keys: Any, rows: Any) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("item", DIM), StorageChoice("hkv"))
        for begin in range(0, len(keys), 1 << 16):
            container.assign(
                "item", keys[begin : begin + (1 << 16)], rows[begin : begin + (1 << 16)]
            )
        container.save(str(folder / "runs/step-1"))
    publish_newest(folder / "runs", folder / "served", PublisherOptions({}))


@contextmanager
def _serving(folder: str, workers: int) -> Iterator[_Service]:
    """Runs a service in a block. The kernel distributes the clients' connections to the workers."""
    path = Path(folder) / f"serving-{workers}.yaml"
    path.write_text(
        f"snapshots: {folder}/served\n"
        f"server: {{address: '127.0.0.1:0', workers: {workers}, front_end: python}}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "sparring", "serve", str(path)], stderr=subprocess.PIPE, text=True
    )
    with ExitStack() as closing:
        closing.callback(_end, process)
        address = _ready(process, workers)
        config = ClientConfig(deadline_seconds=9)
        clients = [closing.enter_context(LookupClient(address, config)) for _ in range(CLIENTS)]
        yield _Service(process, workers, tuple(clients))


def _ready(process: subprocess.Popen[str], workers: int) -> str:
    assert process.stderr is not None
    addresses: list[str] = []
    end = time.monotonic() + 60
    while len(addresses) < workers and time.monotonic() < end:
        line = process.stderr.readline()
        if not line:
            break
        if found := _READY.search(line):
            addresses.append(found[1])
    if len(addresses) < workers:
        raise AssertionError(f"{workers} workers did not start within 60 s")
    return addresses[0]


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    assert process.stderr is not None
    process.stderr.close()
