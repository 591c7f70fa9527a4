"""The checks of a configuration of ``sparring train``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring import count_rows
from sparring.contracts import is_path, validate_options
from sparring.errors import ConfigError, SparringError
from sparring_cli import JobCheck, JobRequest
from sparring_train.checks.machine import check_memory, check_port, check_versions
from sparring_train.checks.places import check_clock, check_folder
from sparring_train.config.reading.loader import load_config
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.stream import StreamData
from sparring_train.registered_kinds import find_stream, find_tracker
from sparring_train.run.snapshot_folder import list_good_snapshots

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["check_job"]

_VECTORS_PER_ROW = 3
"""Embedding and optimizer state of a row, in embeddings: Adam has two vectors of state."""

_SPARE_SNAPSHOTS = 1
"""Snapshots beyond `snapshots.keep`: a new one is complete before the oldest is removed."""


def check_job(request: JobRequest, manager: PluginManager) -> Iterator[JobCheck]:
    """Yields the result of each check.

    Args:
        request: the configuration, and the size of the run.
        manager: finds backends.
    """
    try:
        config = load_config(request.config, request.overrides, plugin_manager=manager)
    except ConfigError as error:
        yield JobCheck(
            "read the configuration",
            "failed",
            str(error),
            "a valid configuration",
            "correct these lines, or pass the path of another file",
        )
        return
    yield JobCheck("read the configuration", "ok", request.config)
    yield check_versions()
    yield from _check_packages(config, manager)
    if port := config.metrics.port:
        for rank in range(request.num_ranks):
            yield check_port("metrics.port", config.metrics.host, port + rank)
    rows = request.num_rows if request.num_rows is not None else _known_rows(config)
    yield from _check_memory(config, rows, request, manager)
    yield from _check_folders(config, rows, request.world_size, manager)
    yield from _check_data(config, manager)
    yield from _check_storage(config, manager)


def _check_packages(config: RunConfig, manager: PluginManager) -> Iterator[JobCheck]:
    """Finds the packages of other projects that settings of the run need."""
    needed = []
    if config.metrics.port is not None or config.metrics.format == "prometheus":
        needed.append(("metrics", "prometheus_client", "sparring[metrics]"))
    for each in config.training.trackers:
        operation = f"find the package of training.trackers: {each.kind}"
        try:
            package = find_tracker(each.kind, manager).package
        except SparringError as error:
            yield JobCheck(operation, "failed", str(error), "a known tracker", "choose another one")
            continue
        if package is not None:
            needed.append(
                (f"training.trackers: {each.kind}", package, f"sparring-train[{each.kind}]")
            )
    for setting, package, extra in needed:
        operation = f"find the package of {setting}"
        if find_spec(package) is not None:
            yield JobCheck(operation, "ok", package)
            continue
        yield JobCheck(
            operation,
            "failed",
            f"{package} is not installed",
            "an installed package",
            f"pip install '{extra}', or remove {setting}",
        )


def _row_bytes(config: RunConfig) -> int:
    """Returns the size of the largest row."""
    sizes = [
        each.dim * _VECTORS_PER_ROW * np.dtype(_NUMPY.get(each.dtype, each.dtype)).itemsize
        for each in config.list_tables()
    ]
    return max(sizes, default=0) + np.dtype(np.int64).itemsize


_NUMPY = {"bfloat16": "float16"}


def _known_rows(config: RunConfig) -> int | None:
    """Returns the number of rows in the newest snapshot of the run; None without snapshots."""
    if config.snapshots.url is None:
        return None
    try:
        found = list_good_snapshots(config.snapshots.url)
        return sum(count_rows(found[-1], each) for each in found[-1].tables) if found else None
    except SparringError:
        return None  # The check of the folder reports why it cannot be read.


def _check_memory(
    config: RunConfig, rows: int | None, request: JobRequest, manager: PluginManager
) -> Iterator[JobCheck]:
    needed: dict[str, int] = {}
    if config.tables.memory_bytes is not None:
        needed["tables.memory_bytes"] = config.tables.memory_bytes
    elif rows is not None:
        needed["the expected rows"] = _estimate(config, rows // request.world_size, manager).get(
            "host", 0
        )
    yield from check_memory(needed, request.num_ranks)


def _estimate(config: RunConfig, rows: int, manager: PluginManager) -> Mapping[str, int]:
    """Returns kind of memory → bytes, as the storage estimates them for rows of the largest table
    with the state of Adam."""
    table = max(config.list_tables(), key=lambda each: each.dim)
    table = table.with_state((_VECTORS_PER_ROW - 1) * table.dim)
    descriptor = manager.storage(config.storage.backend)
    if descriptor.estimate_bytes is None:
        return {"host": rows * _row_bytes(config)}
    options = validate_options("storage", descriptor, _options(config, table.name))
    more = () if descriptor.inner is None else (manager,)
    return descriptor.estimate_bytes(table, options, rows, *more)


def _options(config: RunConfig, table: str) -> Mapping[str, Any]:
    """Returns the options of the storage of rank 0."""
    return {
        key: each.format(rank=0, world_size=1, table=table) if isinstance(each, str) else each
        for key, each in config.storage.options.items()
    }


def _check_folders(
    config: RunConfig, rows: int | None, world_size: int, manager: PluginManager
) -> Iterator[JobCheck]:
    size = None if rows is None else rows * _row_bytes(config)
    seconds = config.snapshots.deadline_seconds
    if config.snapshots.url is not None:
        num_kept = config.snapshots.keep + _SPARE_SNAPSHOTS
        needed = None if size is None else size * num_kept
        yield from check_folder("snapshots.url", config.snapshots.url, needed, seconds * num_kept)
    if config.publish.url is not None:
        served = None if size is None else size // _VECTORS_PER_ROW
        yield from check_folder("publish.url", config.publish.url, served, seconds)
    disk = None if rows is None else _estimate(config, rows // world_size, manager).get("disk")
    backend, options = config.storage.backend, _options(config, config.list_tables()[0].name)
    for setting, path in _storage_paths(backend, options, "storage.options", manager):
        yield from check_folder(setting, path, disk, seconds)
    for setting, path in _files(config):
        folder = path.rpartition("/")[0] or "."
        yield from check_folder(setting, folder, None, seconds)


def _storage_paths(
    backend: str, options: Mapping[str, Any], at: str, manager: PluginManager
) -> Iterator[tuple[str, str]]:
    """Yields the key and the path of each folder in the options of a storage and of its tiers."""
    descriptor = manager.storage(backend)
    for name, field in descriptor.options.model_fields.items():
        if is_path(field) and isinstance(options.get(name), str):
            yield f"{at}.{name}", options[name]
    if descriptor.inner is not None:
        for each in descriptor.inner(validate_options("storage", descriptor, options)):
            below = f"{at}.{'.'.join(map(str, each.path))}.options"
            yield from _storage_paths(each.backend, each.options, below, manager)


def _files(config: RunConfig) -> Iterator[tuple[str, str]]:
    for setting, path in (
        ("metrics.path", config.metrics.path),
        ("report.path", config.report.path),
        ("report.trace_path", config.report.trace_path),
    ):
        if path is not None:
            yield setting, path


def _check_data(config: RunConfig, manager: PluginManager) -> Iterator[JobCheck]:
    data = config.data
    if isinstance(data, StreamData):
        yield from _check_stream(data, manager)
    elif (path := getattr(data, "path", None)) is not None:
        yield _readable("data.path", str(path))


def _readable(setting: str, path: str) -> JobCheck:
    import fsspec  # type: ignore[import-untyped]  # it ships no types

    try:
        files = fsspec.open_files(path, "rb")
        for each in files[:1]:
            with each as file:
                file.read(1)
        found = f"{len(files)} files" if files else "no files"
    except Exception as error:  # Clients of object stores raise their own errors.
        files, found = [], str(error).partition("\n")[0] or type(error).__name__
    if files:
        return JobCheck(f"read {setting}", "ok", f"{path}: {found}")
    return JobCheck(
        f"read {setting}",
        "failed",
        f"{path}: {found}",
        "files that can be read",
        "correct the path, or grant the user of the run permission to read it",
    )


def _check_stream(data: StreamData, manager: PluginManager) -> Iterator[JobCheck]:
    scheme, is_url, _ = data.url.partition("://")
    try:
        kind = find_stream(scheme if is_url else "folder", manager) or find_stream(
            "folder", manager
        )
        assert kind is not None
        source = kind.open(data.url, validate_options("stream of data.url", kind, data.options))
        try:
            partitions = source.end_offsets()
        finally:
            source.close()
    except Exception as error:  # Clients of brokers raise their own errors.
        yield JobCheck(
            "read data.url",
            "failed",
            f"{data.url}: {str(error).partition(chr(10))[0]}",
            "a stream that can be read",
            "start the broker, correct the URL, or set the password",
        )
        return
    yield JobCheck("read data.url", "ok", f"{data.url}: {len(partitions)} partitions")
    if scheme in ("redis", "rediss"):
        there = _redis_time(data.url)
        yield check_clock("data.url", there, time.time())


def _redis_time(url: str) -> float:
    from redis import Redis

    client = Redis.from_url(url.rpartition("/")[0], password=os.environ.get("REDISCLI_AUTH"))
    seconds, microseconds = client.time()
    client.close()
    return float(seconds) + float(microseconds) / 1e6


def _check_storage(config: RunConfig, manager: PluginManager) -> Iterator[JobCheck]:
    """Asks a storage that outlives the process for its tables, which does not create anything."""
    descriptor = manager.storage(config.storage.backend)
    if descriptor.found is None:
        return
    table = config.list_tables()[0]
    operation = f"open storage {config.storage.backend}"
    try:
        found = descriptor.found(
            table, validate_options("storage", descriptor, _options(config, table.name))
        )
    except Exception as error:  # Clients of databases raise their own errors.
        yield JobCheck(
            operation,
            "failed",
            str(error).partition("\n")[0],
            "a storage that can be reached",
            "start it, or correct storage.options",
        )
        return
    state = "no rows yet" if found is None else "rows of an earlier run"
    yield JobCheck(operation, "ok", f"table {table.name}: {state}")
