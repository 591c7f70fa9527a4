"""Connects the ranks: each rank listens and writes its address to a shared folder."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from sparring.errors import DeadlineError, InvalidArgumentError
from sparring_tcp import TcpOptions

_RANK_BYTES = 4
_POLL_SECONDS = 0.02


def connect(rank: int, world_size: int, options: TcpOptions) -> dict[int, socket.socket]:
    """Connects to all other ranks: to lower ranks actively, and by accepting connections of higher ranks.

    Raises:
        DeadlineError: not all ranks connected in time.
        InvalidArgumentError: the folder contains addresses of an earlier job.
    """
    limit = time.monotonic() + options.start_seconds
    options.folder.mkdir(parents=True, exist_ok=True)
    found: dict[int, socket.socket] = {}
    with socket.create_server(("", 0), backlog=world_size) as server:
        _announce(options.folder / f"rank-{rank}", f"{options.host} {server.getsockname()[1]}")
        try:
            for other in range(rank):
                found[other] = _connect(options.folder / f"rank-{other}", limit)
                found[other].sendall(rank.to_bytes(_RANK_BYTES, "little"))
            while len(found) < world_size - 1:
                server.settimeout(max(limit - time.monotonic(), 0.01))
                called = server.accept()[0]
                called.settimeout(max(limit - time.monotonic(), 0.01))
                number = called.recv(_RANK_BYTES, socket.MSG_WAITALL)
                found[int.from_bytes(number, "little")] = called
        except TimeoutError as error:
            missing = sorted({*range(world_size)} - {rank, *found})
            for each in found.values():
                each.close()
            raise DeadlineError(
                f"collective 'tcp': ranks {missing} did not connect through {options.folder} within "
                f"{options.start_seconds:g} s; see their output, and set the same folder on all ranks"
            ) from error
    return found


def _announce(path: Path, text: str) -> None:
    """Writes an address atomically; fails if there already is one."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_text(text)
    try:
        os.link(own, path)
    except FileExistsError as error:
        raise InvalidArgumentError(
            f"collective 'tcp': {path} already exists, from an earlier job; set a new folder for each job"
        ) from error
    finally:
        own.unlink()


def _connect(path: Path, limit: float) -> socket.socket:
    """Waits until a rank has written its address, and connects to it."""
    while True:
        try:
            host, port = path.read_text().split()
            return socket.create_connection((host, int(port)), max(limit - time.monotonic(), 0.01))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if time.monotonic() > limit:
                raise TimeoutError from error
            time.sleep(_POLL_SECONDS)
