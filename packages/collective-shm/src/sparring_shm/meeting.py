"""Connects the ranks of one host through shared memory.

Each rank creates its inbox, a memfd: memory without a name, which the kernel releases when the last
process ends. The ranks find each other through another collective, and exchange the descriptors of their
inboxes over Unix sockets, which also have no name in the file system.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparring import make_plugin_manager
from sparring.contracts import NOTICE_TAG, Array, Collective, Membership, validate_options
from sparring.errors import DeadlineError
from sparring_shm import _native
from sparring_shm.collective import ShmCollective
from sparring_shm.options import ShmOptions

__all__ = ["connect_local_ranks", "join_shm"]

_log = logging.getLogger(__name__)

# A copy of a smaller message through the ring is faster than a system call and a reply.
_DIRECT_BYTES = 16 << 10

# index of the rank among the ranks of its host | address of a number in its memory | the number
_HELLO = struct.Struct("<QQQ")
_CREDENTIALS = struct.Struct("<iII")


def join_shm(membership: Membership, options: ShmOptions, deadline_seconds: float) -> Collective:
    """Connects all ranks: with shared memory on each host, and with the collective `between_hosts` of
    the options otherwise. All ranks must call it.

    Raises:
        DeadlineError: not all ranks joined in time.
        PluginError: the collective `between_hosts` is missing.
    """
    name = "local" if membership.world_size == 1 else options.between_hosts
    descriptor = make_plugin_manager().collective(name)
    checked = validate_options("collective", descriptor, {})
    between_hosts = descriptor.factory(membership, checked, deadline_seconds)
    return connect_local_ranks(between_hosts, options)


def connect_local_ranks(
    collective: Collective, options: ShmOptions | None = None, *, host: str | None = None
) -> Collective:
    """Returns a collective that uses shared memory between ranks of one host, and `collective` for
    all other messages; returns `collective` if this rank is the only one of its host, or cannot use
    shared memory. All ranks must call it.

    Args:
        collective: connection to all ranks; closed with the result, or if an error is raised.
        options: the options; `between_hosts` is not used.
        host: name of this host, for tests.

    Raises:
        DeadlineError: a rank of this host did not connect in time.
    """
    try:
        return _connect(collective, options or ShmOptions(), host)
    except BaseException:
        collective.close()
        raise


def _connect(collective: Collective, options: ShmOptions, host: str | None) -> Collective:
    name = f"\0sparring-{secrets.token_hex(16)}"
    with contextlib.ExitStack() as kept:
        with contextlib.ExitStack() as temporary:
            listener = temporary.enter_context(socket.socket(socket.AF_UNIX))
            inbox = -1
            try:
                host = host or _host()
                inbox = os.memfd_create("sparring-shm", os.MFD_CLOEXEC)
                temporary.callback(os.close, inbox)
                listener.bind(name)
                listener.listen(collective.world_size)
            except OSError as error:
                _log.warning(
                    "rank %d cannot use shared memory (%s), so it sends all messages over the other "
                    "collective; allow the system call, or set collective.backend to that collective",
                    collective.rank,
                    error,
                )
                host = name  # which no other rank has
            mine = json.dumps({"host": host, "name": name, "capacity": options.ring_bytes})
            gathered = collective.all_gather(np.frombuffer(mine.encode(), np.uint8))
            ranks = [json.loads(each.tobytes()) for each in gathered]
            hosts = [each["host"] for each in ranks]
            local = [rank for rank, each in enumerate(hosts) if each == host]
            collective.hosts = [
                [rank for rank, each in enumerate(hosts) if each == other]
                for other in dict.fromkeys(hosts)
            ]
            if len(local) == 1:
                if len(set(hosts)) < len(hosts):
                    collective.barrier()
                return collective
            index = local.index(collective.rank)
            # The sender and the receiver must know the same size, so all ranks use the same one.
            capacity = min(each["capacity"] for each in ranks)
            os.ftruncate(inbox, _native.inbox_bytes(len(local), capacity))
            # Ranks of one host have the same parent: torchrun, mpiexec, or the agent of a scheduler.
            _native.allow_reads_of_family(os.getppid())
            number = np.frombuffer(secrets.token_bytes(8), np.uint64)
            peers: dict[int, _Peer] = {}
            try:
                names = [ranks[rank]["name"] for rank in local[:index]]
                for link in _links(listener, names, len(local) - 1, collective):
                    # Connections stay open on both sides, because a closed one looks like the end of a
                    # process.
                    kept.enter_context(link)
                    place, peer = _greet(link, index, inbox, number)
                    temporary.callback(os.close, peer.inbox)
                    peers[place] = peer
            except OSError as error:
                missing = [rank for place, rank in enumerate(local) if place not in {index, *peers}]
                raise DeadlineError(
                    f"collective 'shm': rank {collective.rank} did not connect to the ranks {missing} of "
                    f"this host within {collective.deadline_seconds:g} s: {error}; see their output, or "
                    "set collective.backend to another collective",
                    ranks=missing,
                ) from error
            inboxes = [peers[p].inbox if p in peers else inbox for p in range(len(local))]
            endpoint = _native.Endpoint(inboxes, index, capacity, _DIRECT_BYTES, NOTICE_TAG)
        for place, peer in peers.items():
            pidfd = _open_process(peer.link)
            if pidfd is not None:
                kept.callback(os.close, pidfd)
            endpoint.set_peer(place, peer.link.fileno() if pidfd is None else pidfd, peer.pid)
        # Nobody may leave before all have read its number.
        collective.barrier()
        if index == 0:
            how = "directly" if all(each.pid for each in peers.values()) else "through rings"
            _log.info(
                "ranks %s of this host exchange large messages %s in shared memory; choose "
                "collective.backend to use another collective",
                ", ".join(map(str, local)),
                how,
            )
        return ShmCollective(collective, endpoint, local, kept.pop_all())


@dataclass(frozen=True, slots=True)
class _Peer:
    """Another rank of this host; `pid` is 0 if its memory cannot be read."""

    link: socket.socket
    inbox: int
    pid: int


def _greet(link: socket.socket, index: int, inbox: int, number: Array) -> tuple[int, _Peer]:
    """Sends the inbox of this rank, and returns the other rank with its index.

    Args:
        link: connection to the other rank.
        index: index of this rank among the ranks of its host.
        inbox: descriptor of the inbox of this rank.
        number: a number that the other rank reads, to find out whether it can read this memory.
    """
    socket.send_fds(link, [_HELLO.pack(index, number.ctypes.data, int(number[0]))], [inbox])
    message, passed, _, _ = socket.recv_fds(link, _HELLO.size, 1)
    if len(message) < _HELLO.size or not passed:
        raise ConnectionError("a connection ended before its memory arrived")
    place, address, expected = _HELLO.unpack(message)
    pid = _credentials(link)[0]
    can_read = pid > 0 and _native.read_number(pid, address) == expected
    return place, _Peer(link, passed[0], pid if can_read else 0)


def _links(
    listener: socket.socket, lower: list[str], num_peers: int, collective: Collective
) -> Iterator[socket.socket]:
    """Connects to ranks with a lower index, and accepts connections of ranks with a higher one."""
    for name in lower:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(collective.deadline_seconds)
        link.connect(name)
        yield link
    listener.settimeout(collective.deadline_seconds)
    num_accepted = 0
    while num_accepted < num_peers - len(lower):
        link, _ = listener.accept()
        # Sockets without a name in the file system have no permissions.
        if _credentials(link)[1] != os.getuid():
            link.close()
            continue
        num_accepted += 1
        link.settimeout(collective.deadline_seconds)
        yield link


def _credentials(link: socket.socket) -> tuple[Any, ...]:
    """Returns the process id, the user and the group of the other side."""
    return _CREDENTIALS.unpack(
        link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )


def _open_process(link: socket.socket) -> int | None:
    """Returns a descriptor that becomes readable when the process on the other side ends, or None if
    the kernel does not provide one."""
    pid = _credentials(link)[0]
    # Unlike a connection, it does not stay open in processes that were forked from the other side.
    with contextlib.suppress(OSError):
        if pid > 0:
            return os.pidfd_open(pid)
    return None


def _host() -> str:
    """Returns a text that is equal for processes that can reach each other over abstract sockets, accept
    each other's connections, and have the same layout of the shared memory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network, users = (Path("/proc/self/ns", each).stat().st_ino for each in ("net", "user"))
    return f"{boot} {network} {users} {os.getuid()} {_native.__version__}"
