"""Measures the costs of plans on this machine, and writes them as a calibration."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sparring import PluginManager, join_job
from sparring.adapter import AUTO, resolve_backends
from sparring.contracts import Collective
from sparring.errors import ConfigError, InvalidArgumentError, SparringError
from sparring_cli import as_yaml
from sparring_plan.planning.calibration.step_timings import measure_step_costs
from sparring_plan.planning.calibration.storage_timings import (
    MeasuredStorage,
    measure_storage_costs,
    pool_ns_per_byte,
)
from sparring_plan.planning.inputs import Calibration, ExchangeCosts, MachineCosts, StorageCosts
from sparring_plan.simulation.calibration import calibrate, measure_best_seconds

__all__ = ["CalibrateOptions", "CalibrateResult", "measure", "write_calibration"]

_SIZES = (4 << 10, 1 << 20, 16 << 20)
_TRIAD_ELEMENTS = 8 << 20
_ROUNDS = 5
_DEADLINE_SECONDS = 120.0
_FRAMEWORK = "torch"
"""Its collective connects the ranks of torchrun."""


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Selects the measurements.

    Args:
        path: Folder on the disk for RocksDB; None skips RocksDB.
        url: URL of the Redis server for rows; None skips Redis.
        model: ``package.module:function``, which returns a step of the dense model: a callable, or a
            tuple of a module and its inputs; None skips it.
    """

    path: Path | None = None
    url: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class CalibrateResult:
    """A calibration, and the skipped measurements with their reasons.

    Args:
        calibration: None on ranks that only exchange messages.
        rank: Rank of this process if a launcher started several; rank 0 writes the file.
        skipped: Sentences about skipped measurements.
        seconds: Duration of the measurement.
    """

    calibration: Calibration | None
    rank: int
    skipped: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Auto:
    backend: str = AUTO
    options: Mapping[str, Any] = field(default_factory=dict)


def measure(options: CalibrateOptions, manager: PluginManager) -> CalibrateResult:
    """Measures this machine, in less than a minute. The machine should be idle otherwise.

    Under torchrun or mpiexec, all ranks call it. Messages and links are measured between all ranks,
    everything else on rank 0 while the other ranks wait.

    Raises:
        ConfigError: The model cannot be imported or called.
        StorageIOError: The path or the server is not usable.
    """
    begin = time.perf_counter()
    dense = None if options.model is None else _dense_step(options.model)
    if resolve_backends(AUTO, AUTO, framework=_FRAMEWORK).rendezvous == "single":
        link = _loopback()
        return _measured(options, manager, dense, link, begin, 0)
    with join_job(
        _Auto(), _Auto(), framework=_FRAMEWORK, deadline_seconds=_DEADLINE_SECONDS,
        plugin_manager=manager,
    ) as job:  # fmt: skip
        rank = job.membership.rank
        link = _between_ranks(job.collective) if job.collective.world_size > 1 else _loopback()
        measured = _measured(options, manager, dense, link, begin, rank) if rank == 0 else None
        job.collective.barrier()
    return measured or CalibrateResult(None, rank, (), time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class _LinkTimes:
    over: str
    seconds: Mapping[int, float]
    """Bytes of a message → seconds from one end to the other."""
    processor_seconds: Mapping[int, float] = field(default_factory=dict)
    """Bytes of a message → processor seconds at each of its ends; empty if it was not measured."""

    @property
    def latency_seconds(self) -> float:
        return self.seconds[_SIZES[0]]

    @property
    def gbit(self) -> float:
        small, large = _SIZES[1:]
        seconds = self.seconds[large] - self.seconds[small]
        return (large - small) * 8e-9 / max(seconds, 1e-9)

    @property
    def transfer_seconds_per_byte(self) -> float:
        """Processor seconds at each end; 0 if they were not measured."""
        if not self.processor_seconds:
            return 0.0
        small, large = _SIZES[1:]
        seconds = self.processor_seconds[large] - self.processor_seconds[small]
        return max(seconds, 0.0) / (large - small)


def _measured(
    options: CalibrateOptions,
    manager: PluginManager,
    dense: Callable[[], object] | None,
    link: _LinkTimes,
    begin: float,
    rank: int,
) -> CalibrateResult:
    storages: dict[str, StorageCosts] = {}
    skipped = []
    try:
        hkv = MeasuredStorage("hkv", "host", {}, {}, 200_000, 16_384)
        storages["hkv"] = measure_storage_costs(hkv, manager)
    except SparringError as error:
        skipped.append(f"hkv: {error}")
    if options.path is None:
        skipped.append("rocksdb: not measured; specify its disk with --path")
    else:
        storages["rocksdb"] = _rocksdb(options.path, manager)
    if options.url is None:
        skipped.append("redis: not measured; specify its server with --url")
    else:
        given = {"url": options.url, "prefix": f"calibration-{os.getpid()}"}
        redis = MeasuredStorage("redis", "remote", given, {}, 20_000, 4_096, ("sgd", "adam"))
        storages["redis"] = measure_storage_costs(redis, manager)
    if not storages:
        raise ConfigError("calibrate: no storage could be measured; " + "; ".join(skipped))
    if dense is None:
        skipped.append(
            "the dense model: not measured; specify it with --model package.module:function"
        )
    found = calibrate(32, next(iter(storages)) if "hkv" not in storages else "hkv", manager)
    message_seconds = link.processor_seconds.get(_SIZES[0], found.message_seconds)
    machine = MachineCosts(
        measured_over=link.over,
        message_us=_rounded(message_seconds * 1e6),
        transfer_ns_per_byte=_rounded(link.transfer_seconds_per_byte * 1e9),
        cores=len(os.sched_getaffinity(0)),
        link_gbit=_rounded(link.gbit),
        link_latency_us=_rounded(link.latency_seconds * 1e6),
        memory_gigabytes_per_second=_rounded(_triad_bytes_per_second() * 1e-9),
        dense_ms=0.0 if dense is None else _rounded(_median_seconds(dense) * 1e3),
        dense_model=options.model or "",
    )
    exchange = ExchangeCosts(
        memory="host",
        add_ns=_rounded(found.add_seconds_per_row * 1e9),
        pool_ns_per_byte=pool_ns_per_byte(),
        chunk_rows=4096,
        chunks_in_flight=8,
    )
    calibration = Calibration(
        name=platform.node() or "unnamed",
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        storages=storages,
        exchange=exchange,
        machine=machine,
    )
    if "hkv" in storages:
        steps = measure_step_costs(calibration, found.message_seconds, manager)
        exchange = exchange.model_copy(update={"steps": steps})
        calibration = calibration.model_copy(update={"exchange": exchange})
    else:
        skipped.append("steps: not measured, because they need hkv")
    return CalibrateResult(calibration, rank, tuple(skipped), time.perf_counter() - begin)


def _rocksdb(path: Path, manager: PluginManager) -> StorageCosts:
    """Measures RocksDB without caches, in a temporary folder."""
    if not path.is_dir():
        raise InvalidArgumentError(
            f"calibrate: --path {path} is not a folder; use a folder on the disk for rows"
        )
    folder = tempfile.mkdtemp(prefix="calibration-", dir=path)
    try:
        given: dict[str, Any] = {"path": folder, "block_cache_bytes": 1 << 20, "direct_io": True}
        try:
            return measure_storage_costs(_on_disk(given), manager)
        except SparringError:
            # The file system does not support direct I/O, for example tmpfs.
            return measure_storage_costs(_on_disk({**given, "direct_io": False}), manager)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _on_disk(options: Mapping[str, Any]) -> MeasuredStorage:
    kept = {"path": "rows"}
    return MeasuredStorage("rocksdb", "disk", options, kept, 30_000, 4_096, ("sgd", "adam"))


def _loopback() -> _LinkTimes:
    """Measures messages between two threads over a loopback TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def answer() -> None:
            for size in _SIZES:
                for _ in range(_ROUNDS):
                    far.sendall(_received(far, size)[:1])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        seconds: dict[int, float] = {}
        for size in _SIZES:
            message, times = bytes(size), []
            for _ in range(_ROUNDS):
                begin = time.perf_counter()
                near.sendall(message)
                _received(near, 1)
                times.append(time.perf_counter() - begin)
            # The first size measures the latency: half of the round trip of a small message.
            seconds[size] = min(times) if seconds else min(times) / 2
        thread.join()
    return _LinkTimes("loopback", seconds)


def _received(connection: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConfigError("calibrate: the loopback connection was closed; run it again")
        view = view[count:]
    return buffer


def _between_ranks(collective: Collective) -> _LinkTimes:
    """Measures messages in a ring of all ranks: each sends to the next while it receives from the
    previous. The processor time of a round is for a message sent and a message received."""
    after = (collective.rank + 1) % collective.world_size
    before = (collective.rank - 1) % collective.world_size
    seconds, processor_seconds = {}, {}
    for size in _SIZES:
        outgoing, incoming = np.zeros(size, np.uint8), np.empty(size, np.uint8)
        times, busy = [], []
        for _ in range(_ROUNDS):
            collective.barrier()
            begin = time.perf_counter(), time.process_time()
            coming = collective.receive(incoming, before)
            going = collective.send(outgoing, after)
            coming.wait()
            going.wait()
            times.append(time.perf_counter() - begin[0])
            busy.append(time.process_time() - begin[1])
        seconds[size], processor_seconds[size] = min(times), min(busy) / 2
    over = f"{collective.world_size} ranks, {collective.within_host or type(collective).__name__}"
    return _LinkTimes(over, seconds, processor_seconds)


def _triad_bytes_per_second() -> float:
    """Measures NumPy's a = b + s·c in two passes, which move five arrays."""
    a, b, c = (np.ones(_TRIAD_ELEMENTS) for _ in range(3))

    def triad() -> None:
        np.multiply(c, 3.0, out=a)
        np.add(a, b, out=a)

    return 5 * a.nbytes / measure_best_seconds(triad)


def _dense_step(name: str) -> Callable[[], object]:
    """Returns the callable that runs a step of the dense model."""
    module, _, function = name.partition(":")
    try:
        made = getattr(import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"calibrate: --model {name}: {error}; use package.module:function, a function without "
            "arguments that returns a callable, or a tuple of a module and its inputs"
        ) from None
    step, inputs = (made[0], made[1:]) if isinstance(made, tuple) else (made, ())
    if not callable(step):
        raise ConfigError(
            f"calibrate: --model {name} returned {type(step).__name__}; return a callable, or a tuple of "
            "a module and its inputs"
        )

    def run() -> object:
        output = step(*inputs)
        if getattr(output, "requires_grad", False):
            output.sum().backward()
        return output

    return run


def _median_seconds(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Writes the file atomically.

    Raises:
        ConfigError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(
                    "# Measured by `sparring plan calibrate`; times in nanoseconds per row.\n"
                )
                file.write(
                    as_yaml(calibration.model_dump(exclude_none=True, exclude_defaults=True))
                )
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot write the calibration: {error.strerror}; choose another --output"
        ) from None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
