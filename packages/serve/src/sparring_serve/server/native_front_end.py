"""Replaces the process of `sparring serve` by the native server, which answers lookups without Python.

The executable is an optional part of the package, built if gRPC's C++ library was found. It is a process
of its own, because gRPC's C++ library and grpcio in one process would use the symbols of each other.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sparring_packed
from sparring import __version__ as core_release
from sparring.errors import SparringError
from sparring_serve.config import ServingConfig, split_address
from sparring_serve.limits import Limits
from sparring_serve.metrics import HELP, ServingMetrics
from sparring_serve.release import release
from sparring_serve.request_log import start_writer
from sparring_serve.service import ShardPosition
from sparring_serve.tables.packed import initial_values_of
from sparring_serve.transport_options import CHANNEL_OPTIONS, server_options
from sparring_serve.wire.fields import encode

__all__ = ["EXECUTABLE", "encode_settings", "execute", "find_obstacle"]

EXECUTABLE = Path(__file__).parents[1] / "bin/sparring-serve-native"
"""The native server, if it was built."""

_FOLDER_ENTRIES = 10_000
"""Maximum number of entries of the folder of serving snapshots that are read for initial values."""


def find_obstacle(config: ServingConfig) -> str:
    """Returns why the native server cannot serve a configuration of the role `inference`; empty if it
    can."""
    if not os.access(EXECUTABLE, os.X_OK):
        return (
            "this installation of sparring-serve was built without the native server, which needs "
            "much less processor time; run: sudo apt install libgrpc++-dev pkg-config, and install "
            "sparring-serve again"
        )
    checked = subprocess.run([EXECUTABLE, "--check"], capture_output=True, text=True, check=False)
    if checked.returncode:
        return (
            f"the native server cannot start: {checked.stderr.strip() or checked.returncode}; install "
            "libgrpc++1.51, or the package of its library on this system"
        )
    if config.tables:
        return "rows of `tables` stay in their backend, which only the server in Python reads"
    if _local_folder(config) is None:
        return "`snapshots` is a URL, whose files only the server in Python copies to server.cache"
    if config.server.reflection:
        return "only the server in Python supports server.reflection"
    return ""


def execute(config: ServingConfig, position: ShardPosition, address: str, log_level: str) -> None:
    """Replaces this process by the native server. Does not return.

    Args:
        config: Configuration that `find_obstacle` accepts.
        position: Shard of the server.
        address: ``host:port`` to listen on; port 0 selects a free port.
        log_level: ``error``, ``info`` or ``debug``.
    """
    log_descriptor = -1
    if config.server.log.path is not None:
        writer, _ = start_writer(config.server.log)
        log_descriptor = writer.detach()  # the native server closes it at its end
        os.set_inheritable(log_descriptor, True)
    content = encode_settings(config, position, address, log_level, log_descriptor).encode()
    # The settings are in memory, so that no file remains.
    descriptor = os.memfd_create("sparring-serve", 0)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.execv(EXECUTABLE, [str(EXECUTABLE), f"/proc/self/fd/{descriptor}"])


def encode_settings(
    config: ServingConfig,
    position: ShardPosition,
    address: str,
    log_level: str,
    log_descriptor: int = -1,
) -> str:
    """Returns the resolved configuration in the format of ``native/server/settings.h``.

    Takes the arguments of `execute`, and the descriptor of the socket of the log, or -1.
    """
    lines = [
        "\t".join([key, *(quote(os.fsencode(str(value))) for value in values)])
        for key, *values in (
            *_settings(config, position, address, log_level),
            ("log_descriptor", log_descriptor),
        )
    ]
    shard_map = quote(position.shards.to_bytes())
    initial = [
        f"initial_values\t{quote(name)}\t{quote(content)}"
        for name, content in _initial_values(config)
    ]
    return "\n".join([*lines, f"shard_map\t{shard_map}", *initial, ""])


def _settings(
    config: ServingConfig, position: ShardPosition, address: str, log_level: str
) -> Iterator[tuple[Any, ...]]:
    server = config.server
    host, port = split_address(address)
    limits = Limits()
    begin, end = position.shards.partitions_of(position.shard)
    yield "library", sparring_packed.library_path()
    yield "release", release()
    yield "core_release", core_release
    yield "log_level", log_level
    yield "snapshots", _local_folder(config)
    yield "pin", server.pin or ""
    yield "verifies_all", int(server.verify == "all")
    yield "keep_versions", server.keep_versions
    yield "poll_seconds", 0 if server.pin is not None else server.poll_seconds
    yield "warm_up_seconds", server.warm_up_seconds
    yield "host", host
    yield "port", port
    yield "metrics_port", -1 if server.metrics_port is None else server.metrics_port
    yield "metrics_token_file", server.metrics_token_file or ""
    yield "metrics_tls", int(server.metrics_tls)
    yield "calls_per_second", server.quota.calls_per_second or 0
    yield "ids_per_second", server.quota.ids_per_second or 0
    yield "health_port", -1 if server.health_port is None else server.health_port
    yield "threads", server.threads * server.workers
    yield "drain_seconds", server.drain_seconds
    yield "certificate_file", server.tls.certificate_file or ""
    yield "key_file", server.tls.key_file or ""
    yield "ca_file", server.tls.ca_file or ""
    yield "token_file", server.token_file or ""
    yield "max_ids", server.max_ids
    yield "max_tables", limits.max_tables
    yield "max_bytes", server.max_bytes
    yield "max_bytes_in_flight", server.max_bytes_in_flight
    yield "max_deadline_seconds", server.max_deadline_seconds
    yield "max_queries", server.max_queries
    yield "max_k", server.max_k
    yield "log_fraction", server.log.fraction
    yield "shard", position.shard
    yield "num_shards", position.shards.num_shards
    yield "partition_begin", begin
    yield "partition_end", end
    for option in (*CHANNEL_OPTIONS, *server_options(server.max_deadline_seconds)):
        yield "channel_option", *option
    for item in HELP.items():
        yield "metric_help", *item
    yield "bucket_bounds", *_bucket_bounds()


def _bucket_bounds() -> list[float]:
    """Returns the upper bounds of the buckets of durations, without infinity."""
    [family] = [
        each
        for each in ServingMetrics().registry.families()
        if each.name == "sparring_serving_pull_seconds"
    ]
    return [bound for bound in family.samples[0].counts or () if math.isfinite(bound)]


def _local_folder(config: ServingConfig) -> str | None:
    """Returns the path of the serving snapshots; None if they are on another file system."""
    scheme, is_url, path = config.snapshots.partition("://")
    if not is_url:
        return config.snapshots.rstrip("/") or "/"
    return path.rstrip("/") or "/" if scheme == "file" else None


def _initial_values(config: ServingConfig) -> Iterator[tuple[str, bytes]]:
    """Yields tables and their encoded InitialValues, which all versions share."""
    folder = Path(_local_folder(config) or "")
    manifests = []
    for path in (folder, *sorted(folder.glob("*"))[:_FOLDER_ENTRIES]):
        try:
            manifests.append(sparring_packed.read_manifest(path))
        except SparringError:
            continue  # not a serving snapshot, or its manifest is damaged
    # After a table was published anew, the newest version wins.
    found = {}
    for manifest in sorted(manifests, key=lambda each: (each.order, each.published)):
        for table in manifest.tables:
            found[table.name] = encode(initial_values_of(table))
    yield from found.items()
