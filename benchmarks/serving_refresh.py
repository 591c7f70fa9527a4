"""Deltas of a million rows into ten million, while the server handles half of its maximum load.

A server process and a client process run on one machine. First the client calls as fast as it can, then
at half of that rate: the latency of a call counts from the time at which it was due. Quiet seconds
alternate with seconds in which a process uses one core, and with seconds that start when a delta is
committed. Each row contains its key and the version that wrote it, so torn rows and mixed versions are
detected. The server's memory, including pages of mapped files, is read continuously.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sparring_packed
from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from benchmarks.serving import keeps_serving, process
from sparring import ScanChunk, SnapshotWriter, TableConfig, TableDescription
from sparring.errors import SparringError
from sparring_serve import ClientConfig, LookupClient, ServerConfig, ServingConfig

__all__ = ["SHARE", "publish_deltas", "measure"]

TABLE_ROWS, SHARE, DIM, BATCH, DELTAS = 10_000_000, 10, 64, 1_000, 3
"""Each delta changes one in `SHARE` rows."""
SECONDS = 6.0
"""Length of the quiet time before a delta, and of the time after its commit."""
POLL_SECONDS = 1.0
VISIBLE_BAR, MEMORY_BAR = 5.0, 1.2
LATENCY_BAR = 3.0 if (os.cpu_count() or 1) <= 2 else 1.5
"""With two cores the refresh competes with the server for them; with more, it has a free core."""

_TABLE = TableConfig("item", DIM, initializer="zeros")
_THREADS = 4
_CHUNK = 65_536


def measure(scale: Scale) -> list[Figure]:
    """Measures the effect of a refresh on latency, memory and replies."""
    num_rows, seconds = scale.rows(TABLE_ROWS), SECONDS if not scale.is_quick else 1.0
    deltas = scale.rounds(DELTAS)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        sizes = publish_deltas(Path(folder), num_rows, deltas)
        server = closing.enter_context(process(_serve, f"{folder}/served"))
        address, number = server.recv().split()
        client = closing.enter_context(process(_ask, f"{address} {num_rows}"))
        burner = closing.enter_context(process(_burn, ""))
        client.send(("closed", seconds / 2, 0.0))
        capacity = len(client.recv()) / (seconds / 2)
        half = capacity / 2
        quiet: list[_Pull] = []
        narrow: list[_Pull] = []
        busy: list[_Pull] = []
        visible, grown, others = [], [], []
        for step in range(2, deltas + 2):
            with _other_cores() as other:
                client.send(("open", seconds, half))
                quiet += client.recv()
            others += other
            burner.send(seconds)
            client.send(("open", seconds, half))
            narrow += client.recv()
            before = _memory_bytes(int(number))
            with _peak_memory(int(number)) as peak, _other_cores() as other:
                client.send(("open", seconds, half))
                time.sleep(0.2)
                committed = time.monotonic()
                Path(folder, f"served/.step-{step}").rename(Path(folder, f"served/step-{step}"))
                pulls = client.recv()
            others += other
            busy += [each for each in pulls if each.due >= committed]
            seen = [each.due + each.seconds for each in pulls if each.step >= step]
            visible.append(min(seen, default=float("inf")) - committed)
            grown.append((peak[0] - before) / sizes[step])
    load = f"{half:,.0f} calls per second, half of the maximum; other work used {max(others):.2f} cores"
    return _figures(_Pulls(quiet, narrow, busy), visible, grown, load)


@dataclass(frozen=True, slots=True)
class _Pull:
    """One call: when it was due, its latency, and the error in its reply."""

    due: float
    seconds: float
    step: int
    failure: str


@dataclass(frozen=True, slots=True)
class _Pulls:
    """Calls of the quiet seconds, of those with one busy core, and of those after a commit."""

    quiet: Sequence[_Pull]
    narrow: Sequence[_Pull]
    busy: Sequence[_Pull]


def _figures(
    made: _Pulls, visible: Sequence[float], grown: Sequence[float], load: str
) -> list[Figure]:
    def percentile(pulls: Sequence[_Pull], share: float) -> float:
        return float(np.percentile([each.seconds for each in pulls], share)) * 1e3

    quiet, busy = made.quiet, made.busy
    pulls = (*quiet, *made.narrow, *busy)
    calls = f"{len(quiet):,} quiet calls of {BATCH:,} ids, {len(busy):,} calls after commits"
    detail = f"{load}; {calls}; {os.cpu_count()} cores"
    figures = []
    for what in ("error", "torn row", "mixed version"):
        count = sum(each.failure.startswith(what) for each in pulls)
        figures.append(Figure(f"replies with: {what}", f"{count}", "0", count == 0, detail))
    for share, bar in ((50, None), (99, LATENCY_BAR)):
        before, during = percentile(quiet, share), percentile(busy, share)
        figures.append(
            Figure(
                f"latency of {share} %, in the {SECONDS:g} s after a commit, compared with quiet seconds",
                f"{during / before:.2f} x", None if bar is None else f"<= {bar:g}",
                None if bar is None else during <= bar * before,
                f"{before:.1f} ms quiet, {during:.1f} ms after commits",
            )
        )  # fmt: skip
    narrow = percentile(made.narrow, 99)
    figures.append(
        Figure(
            "latency of 99 %, while another process uses one core, compared with quiet calls",
            f"{narrow / percentile(quiet, 99):.2f} x", detail=f"{narrow:.1f} ms",
        )
    )  # fmt: skip
    shown = ", ".join(f"{each:.2f} s" for each in visible)
    figures.append(
        Figure(
            "from the commit to the first reply", f"{max(visible):.2f} s", f"<= {VISIBLE_BAR:g}",
            max(visible) <= VISIBLE_BAR, f"{shown}; the folder is searched every {POLL_SECONDS:g} s",
        )
    )  # fmt: skip
    shown = ", ".join(f"{each:.2f}" for each in grown)
    figures.append(
        Figure(
            "peak of the additional memory, in sizes of a delta", f"{max(grown):.2f} x",
            f"<= {MEMORY_BAR:g}", max(grown) <= MEMORY_BAR, shown,
        )
    )  # fmt: skip
    return figures


# -- served rows ----------------------------------------------------------------------------------


def _rows_of(keys: npt.NDArray[np.int64], step: npt.NDArray[np.float32], dim: int = DIM) -> Any:
    """Returns rows: the step that wrote them, then numbers computed from key and step."""
    columns = np.arange(dim, dtype=np.float32)
    rows = columns * (keys % 1009).astype(np.float32)[:, None] + step[:, None]
    rows[:, 0] = step
    return rows


def _step_of(keys: npt.NDArray[np.int64], step: int) -> npt.NDArray[np.float32]:
    """Returns the step that wrote the row of each key, in the version of `step`."""
    part = keys % SHARE
    return np.where((part >= 1) & (part < step), part + 1, 1).astype(np.float32)


def publish_deltas(folder: Path, num_rows: int, deltas: int, dim: int = DIM) -> dict[int, int]:
    """Writes a full serving snapshot, and uncommitted deltas; returns the bytes of each."""
    sizes = {}
    table = replace(_TABLE, dim=dim)
    for step in range(1, deltas + 2):
        keys = np.arange(num_rows, dtype=np.int64)
        keys = keys if step == 1 else keys[keys % SHARE == step - 1]
        base = None if step == 1 else f"{folder}/run/step-{step - 1}"
        writer = SnapshotWriter(f"{folder}/run/step-{step}", step=step, base=base)
        chunks = (
            ScanChunk(
                some, _rows_of(some, np.full(len(some), step, np.float32), dim),
                np.zeros(len(some), np.uint64),
            )
            for some in (keys[at : at + _CHUNK] for at in range(0, len(keys), _CHUNK))
        )  # fmt: skip
        writer.write_table(TableDescription.of(table), chunks, [])
        writer.finish()
        writer.commit()
        served = f"{folder}/served/step-{step}"
        sparring_packed.write(
            f"{folder}/run/step-{step}", served,
            base=None if base is None else f"{folder}/served/step-{step - 1}",
        )  # fmt: skip
        sizes[step] = sum(each.stat().st_size for each in Path(served).glob("*.packed"))
    for step in range(2, deltas + 2):
        Path(folder, f"served/step-{step}").rename(Path(folder, f"served/.step-{step}"))
    os.sync()  # otherwise data are written to disk during the measurement
    return sizes


# -- processes ----------------------------------------------------------------------------------


def _serve(folder: str, connection: Connection) -> None:
    config = ServingConfig(snapshots=folder, server=ServerConfig(poll_seconds=POLL_SECONDS))
    keeps_serving(config, connection, lambda server: f"{server.address} {os.getpid()}")


def _ask(argument: str, connection: Connection) -> None:
    """Calls as requested: as fast as it can, or at a given rate."""
    address, num_rows = argument.split()
    with LookupClient(address, ClientConfig(deadline_seconds=9)) as client:
        while (order := connection.recv()) != "end":
            how, seconds, rate = order
            connection.send(_pulls(client, int(num_rows), seconds, rate if how == "open" else 0.0))


def _burn(_: str, connection: Connection) -> None:
    """Uses one core for the requested number of seconds."""
    while (seconds := connection.recv()) != "end":
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass


def _pulls(client: LookupClient, num_rows: int, seconds: float, rate: float) -> list[_Pull]:
    found: list[_Pull] = []
    begin = time.monotonic() + 0.05

    def ask(place: int) -> None:
        generator = np.random.default_rng(place)
        number = place
        while True:
            due = begin + number / rate if rate else time.monotonic()
            if due >= begin + seconds:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            found.append(_pull(client, generator.integers(0, num_rows, BATCH), due))
            number += _THREADS

    # At full speed, only as many threads as keep the server busy.
    asking = [threading.Thread(target=ask, args=(each,)) for each in range(_THREADS if rate else 2)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    return found


def _pull(client: LookupClient, keys: npt.NDArray[np.int64], due: float) -> _Pull:
    try:
        answer = client.pull({_TABLE.name: keys})
    except SparringError as error:
        return _Pull(due, time.monotonic() - due, 0, f"error: {error}")
    seconds = time.monotonic() - due
    rows, step = answer.rows[_TABLE.name], answer.versions[0].step
    failure = ""
    if len(answer.versions) != 1 or not np.array_equal(rows[:, 0], _step_of(keys, step)):
        failure = "mixed version"
    elif not np.array_equal(rows, _rows_of(keys, rows[:, 0])):
        failure = "torn row"
    return _Pull(due, seconds, step, failure)


# -- memory, and other processes ------------------------------------------------------------------


def _memory_bytes(number: int) -> int:
    """Returns the resident bytes of a process, including mapped files."""
    fields = Path(f"/proc/{number}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _peak_memory(number: int) -> Iterator[list[int]]:
    """Yields a list whose only item becomes the maximum of `_memory_bytes` in the block."""
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            peak[0] = max(peak[0], _memory_bytes(number))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        over.set()
        watching.join()


@contextmanager
def _other_cores() -> Iterator[list[float]]:
    """Yields a list whose only item becomes the number of cores that processes other than this one and
    its children used in the block."""
    cores, begin, before = [0.0], time.monotonic(), _other_seconds()
    yield cores
    cores[0] = max(0.0, (_other_seconds() - before) / (time.monotonic() - begin))


def _other_seconds() -> float:
    numbers = [os.getpid(), *(each.pid for each in multiprocessing.active_children())]
    own = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in numbers]
    # user, nice, system, idle, iowait, irq, softirq, steal
    whole = [int(each) for each in Path("/proc/stat").read_text().split()[1:9]]
    ticks = sum(whole) - whole[3] - whole[4] - sum(int(each[11]) + int(each[12]) for each in own)
    return ticks / os.sysconf("SC_CLK_TCK")
