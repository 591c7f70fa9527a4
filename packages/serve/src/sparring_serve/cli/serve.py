"""``sparring serve``: one process, or several on one port."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sparring.errors import ConfigError, StorageIOError
from sparring_cli import ExitCode, add_command, get_command_context
from sparring_serve.config import ServingConfig, read_serving_config, split_address
from sparring_serve.server import native_front_end
from sparring_serve.server.heap import keep_freed_memory
from sparring_serve.server.lookup_server import LookupServer, check_access, open_server
from sparring_serve.service import ShardPosition
from sparring_serve.tables import file_systems

__all__ = ["EXIT_STUCK", "add_serve", "warn_of_remote_files"]

_log = logging.getLogger("sparring_serve")

_VERBOSITY = {"error": ["--quiet"], "info": [], "debug": ["--verbose"]}
"""Option of ``sparring`` for each level of log messages."""

EXIT_STUCK = 70
"""Exit code of a server whose threads were all stuck."""


def add_serve(application: typer.Typer) -> None:
    add_command(
        application,
        "serve",
        serve,
        examples=[
            "sparring serve configs/serving.yaml",
            "sparring serve serving.yaml --shard 2/8 --replica 1 server.workers=4",
        ],
    )


def serve(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file of a service.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override values of the file."),
    ] = None,
    shard: Annotated[str, typer.Option(help="Shard of this server, for example 2/8.")] = "1/1",
    replica: Annotated[
        int,
        typer.Option(
            help="Number of the replica of the shard, from 1; determines the address.", min=1
        ),
    ] = 1,
    workers: Annotated[
        int | None,
        typer.Option(help="Number of processes on one port; overrides server.workers.", min=1),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            help="inference: serving snapshots, read-only; parameters: trainable tables, updated by "
            "pushes. Default: the role that the file declares."
        ),
    ] = None,
    worker: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve tables over gRPC until SIGTERM: a folder of serving snapshots, or trainable tables."""
    level = get_command_context(context).log_level or "info"
    if level != "debug":  # --verbose prints log messages already.
        logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    given = [*(overrides or []), *([] if workers is None else [f"server.workers={workers}"])]
    if role not in (None, "inference", "parameters"):
        raise ConfigError(f"--role: must be inference or parameters, found {role!r}")
    read = read_serving_config(config, given)
    role = role or _find_role(read, config)
    position = ShardPosition(read.shard_map, _shard(shard, read))
    address = read.server.address or _address(read, position, replica)
    if role == "parameters":
        from sparring_serve.parameters.server import open_parameter_server

        _log.info("the server in Python answers calls: the native server has no role parameters")
        opened = partial(open_parameter_server, replica=replica - 1)
        _run(opened, read, position, address, 0)
        return
    if worker is None and not read.tables:
        warn_of_remote_files(read)
    if worker is None and _uses_native_server(read):
        check_access(read.server, address)
        native_front_end.execute(read, position, address, level)
    if read.server.workers > 1 and worker is None:
        options = ["--shard", shard, "--role", role]
        raise typer.Exit(_run_workers(config, given, options, address, _VERBOSITY[level]))
    _run(open_server, read, position, address, worker or 0)


def warn_of_remote_files(config: ServingConfig) -> None:
    """Logs a warning if files would be mapped from a remote file system."""
    scheme, is_url, path = config.snapshots.partition("://")
    mapped = config.server.cache if is_url and scheme != "file" else path or config.snapshots
    if mapped is not None and (warning := file_systems.mapping_warning(mapped)):
        _log.warning(warning)


def _uses_native_server(read: ServingConfig) -> bool:
    """Returns whether the native server serves a configuration, and logs which server does, and why."""
    chosen = read.server.front_end
    if chosen == "python":
        _log.info("the server in Python answers calls: server.front_end is python")
        return False
    obstacle = native_front_end.find_obstacle(read)
    if obstacle and chosen == "native":
        raise ConfigError(
            f"server.front_end: native is not possible: {obstacle}; or set server.front_end=auto"
        )
    if obstacle:
        _log.info("the server in Python answers calls: %s", obstacle)
    else:
        why = "was built and supports the configuration" if chosen == "auto" else "was chosen"
        _log.info("the native server answers calls: it %s (server.front_end: %s)", why, chosen)
    return not obstacle


def _find_role(read: ServingConfig, config: Path) -> str:
    """Returns the role of a server whose command does not specify one."""
    if read.parameters is None:
        return "inference"
    if "snapshots" in read.model_fields_set or read.tables:
        raise ConfigError(
            f"{config} declares both trainable tables, under `parameters`, and tables to read; specify "
            f"the role: sparring serve {config} --role parameters, or sparring serve {config} --role "
            "inference"
        )
    return "parameters"


def _shard(text: str, config: ServingConfig) -> int:
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    num_shards = len(config.shards)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(
            f"--shard: must be a shard from 1 to the number of shards, and that number, such as 2/8; "
            f"found {text!r}"
        )
    # This is the default, so the shard was not specified.
    if text == "1/1" and num_shards > 1:
        raise ConfigError(
            f"the configuration has {num_shards} shards; specify the shard of this server, for example "
            f"--shard 1/{num_shards}"
        )
    if int(match[2]) != num_shards:
        raise ConfigError(
            f"--shard {text}: the configuration has {num_shards} shards; list the replicas of "
            f"{match[2]} shards under `shards`"
        )
    return int(match[1]) - 1


def _address(config: ServingConfig, position: ShardPosition, replica: int) -> str:
    replicas = config.shards[position.shard]
    if replica > len(replicas):
        raise ConfigError(
            f"--replica {replica}: shard {position.shard + 1} has {len(replicas)} replicas under "
            "`shards`; add its address there"
        )
    return replicas[replica - 1]


def _run(
    opened: Callable[..., LookupServer],
    config: ServingConfig,
    position: ShardPosition,
    address: str,
    worker: int,
) -> None:
    keep_freed_memory()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server_config = config.server
    # Each process has separate metrics and health, and therefore separate ports.
    for name in ("metrics_port", "health_port"):
        if port := getattr(server_config, name):
            server_config = server_config.model_copy(update={name: port + worker})
    own = config.model_copy(update={"server": server_config})
    server = opened(own, shard=position.shard, address=address)
    server.on_stuck = _end_at_once
    tables = server.service.tables
    newest = tables.versions()[0]
    served = ", ".join(
        f"{each.name} ({'at most ' if each.is_bound else ''}{each.num_rows:,} rows)"
        for each in tables.shapes().values()
    )
    _log.info(
        "ready on %s: step %d, version %s, shard %d/%d: %s",
        server.address, newest.step, newest.hash or "none", position.shard + 1,
        position.shards.num_shards, served,
    )  # fmt: skip
    if server.service.tables.not_fresh:
        _log.warning("an older version is served: %s", server.service.tables.not_fresh)
    # Wait in intervals, because a signal that is delivered to another thread does not wake this one.
    while not stop.wait(0.5):
        continue
    _log.info("draining: new calls are rejected, calls in progress are completed")
    server.close()
    _log.info("all calls were completed, the server has ended")


def _end_at_once() -> None:
    """Ends the process without draining, because its threads are stuck."""
    logging.shutdown()
    os._exit(EXIT_STUCK)


def _run_workers(
    config: Path,
    overrides: Sequence[str],
    options: Sequence[str],
    address: str,
    verbosity: Sequence[str],
) -> int:
    """Starts the processes, forwards SIGTERM, and ends all when one ends. Returns the exit code."""
    num_workers = read_serving_config(config, overrides).server.workers
    host, port = split_address(address)
    # Bind a socket without listening, to reserve the port even if the address has port 0.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            reserved.bind((host, port))
        except OSError as error:
            raise StorageIOError(
                f"cannot listen on {address} ({error.strerror}); stop the process that uses the port, or "
                "set server.address"
            ) from None
        port = reserved.getsockname()[1]
        bound = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        command = [sys.executable, "-m", "sparring", *verbosity, "serve", str(config), *overrides]
        command += [f"server.address={bound}", *options]
        ended = threading.Event()
        started = [
            subprocess.Popen([*command, "--worker", str(number)]) for number in range(num_workers)
        ]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        while not ended.wait(0.2) and all(each.poll() is None for each in started):
            pass
        failed = [each for each in started if each.poll() is not None]
        for each in started:
            if each.poll() is None:
                each.terminate()
        # A process that was still starting is ended by the signal.
        codes = {each.wait() for each in started} - {-signal.SIGTERM}
    if failed and not ended.is_set():
        _log.error(
            "a worker ended with exit code %d, so all were stopped; its messages are above",
            failed[0].returncode,
        )
        return ExitCode.FAILURE
    return max(map(abs, codes), default=0)
