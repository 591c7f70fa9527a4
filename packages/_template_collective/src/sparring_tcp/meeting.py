"""Ranks find each other: each listens, and writes its address into a folder that all of them reach."""

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
    """Connections to all other ranks: each rank calls those below it, and is called by those above.

    Raises:
        DeadlineError: not all ranks came.
        InvalidArgumentError: the folder holds addresses of an earlier job.
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
                f"collective 'tcp': ranks {missing} did not come to {options.folder} within "
                f"{options.start_seconds:g} s; look at what they printed, and give all ranks one folder"
            ) from error
    return found


def _announce(path: Path, text: str) -> None:
    """Writes an address, whole or not at all, where there is none yet."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_text(text)
    try:
        os.link(own, path)
    except FileExistsError as error:
        raise InvalidArgumentError(
            f"collective 'tcp': {path} exists, of an earlier job; give each a folder of its own"
        ) from error
    finally:
        own.unlink()


def _connect(path: Path, limit: float) -> socket.socket:
    """Connects to the rank that wrote its address there, as soon as it has."""
    while True:
        try:
            host, port = path.read_text().split()
            return socket.create_connection((host, int(port)), max(limit - time.monotonic(), 0.01))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if time.monotonic() > limit:
                raise TimeoutError from error
            time.sleep(_POLL_SECONDS)
