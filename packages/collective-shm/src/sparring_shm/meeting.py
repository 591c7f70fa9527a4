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
from pathlib import Path
from typing import Any

import numpy as np

from sparring import make_plugin_manager
from sparring.contracts import NOTICE_TAG, Collective, Membership, validate_options
from sparring.errors import DeadlineError
from sparring_shm import _native
from sparring_shm.collective import ShmCollective
from sparring_shm.options import ShmOptions

__all__ = ["connect_local_ranks", "join_shm"]

_log = logging.getLogger(__name__)

# A copy of a smaller message through the ring is faster than a system call and a reply.
_DIRECT_BYTES = 16 << 10

# index of the rank among those of its host | address of a number in its memory | the number
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
    all other messages; returns `collective` if no host has several ranks. All ranks must call it.

    Args:
        collective: connection to all ranks; closed with the result, or if an error is raised.
        options: the options; `between_hosts` is not used.
        host: name of this host, for tests.

    Raises:
        DeadlineError: a rank of this host did not connect in time.
    """
    try:
        return _connect(collective, options or ShmOptions(), host or _host())
    except BaseException:
        collective.close()
        raise


def _connect(collective: Collective, options: ShmOptions, host: str) -> Collective:
    name = f"\0sparring-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as closing:
        listener.bind(name)
        listener.listen(collective.world_size)
        mine = json.dumps({"host": host, "name": name, "capacity": options.ring_bytes})
        gathered = collective.all_gather(np.frombuffer(mine.encode(), np.uint8))
        ranks = [json.loads(each.tobytes()) for each in gathered]
        hosts = [each["host"] for each in ranks]
        if len(set(hosts)) == len(hosts):
            return collective
        local = [rank for rank, each in enumerate(hosts) if each == host]
        index = local.index(collective.rank)
        # The sender and the receiver must know the same size, so all ranks use the same one.
        capacity = min(each["capacity"] for each in ranks)
        inbox = os.memfd_create("sparring-shm", os.MFD_CLOEXEC)
        closing.callback(os.close, inbox)
        os.ftruncate(inbox, _native.inbox_bytes(len(local), capacity))
        # A number that the others read, to find out whether they can read the memory of this process.
        number = np.frombuffer(secrets.token_bytes(8), np.uint64)
        # Ranks of one host have the same parent: torchrun, mpiexec, or the agent of a scheduler.
        _native.allow_reads_of_family(os.getppid())
        hello = _HELLO.pack(index, number.ctypes.data, int(number[0]))
        names = [ranks[rank]["name"] for rank in local]
        links: dict[int, socket.socket] = {}
        inboxes, pids = [inbox] * len(local), [0] * len(local)
        try:
            for link in _links(listener, names[:index], len(local) - 1, collective):
                closing.enter_context(link)
                socket.send_fds(link, [hello], [inbox])
                message, passed, _, _ = socket.recv_fds(link, _HELLO.size, 1)
                peer, address, expected = _HELLO.unpack(message)
                closing.callback(os.close, passed[0])
                links[peer], inboxes[peer] = link, passed[0]
                pid = _credentials(link)[0]
                if pid > 0 and _native.read_number(pid, address) == expected:
                    pids[peer] = pid
        except (TimeoutError, ConnectionError, struct.error) as error:
            missing = [rank for place, rank in enumerate(local) if place not in {index, *links}]
            raise DeadlineError(
                f"collective 'shm': ranks {missing} of this host did not connect within "
                f"{collective.deadline_seconds:g} s ({error}); see their output",
                ranks=missing,
            ) from error
        endpoint = _native.Endpoint(inboxes, index, capacity, _DIRECT_BYTES, NOTICE_TAG)
        descriptors = []
        for peer, link in links.items():
            # Connections stay open on both sides, because a closed one looks like a process that ended.
            descriptors.append(os.dup(link.fileno()))
            pidfd = _open_process(link)
            if pidfd is not None:
                descriptors.append(pidfd)
            endpoint.set_peer(peer, descriptors[-1], pids[peer])
    # Nobody may leave before all have read its number.
    collective.barrier()
    if index == 0:
        how = "directly" if sum(pid > 0 for pid in pids) == len(local) - 1 else "through rings"
        _log.info(
            "ranks %s of this host exchange large messages %s in shared memory; choose "
            "collective.backend to use another collective",
            ", ".join(map(str, local)),
            how,
        )
    return ShmCollective(collective, endpoint, local, descriptors)


def _links(
    listener: socket.socket, lower: list[str], num_peers: int, collective: Collective
) -> Iterator[socket.socket]:
    """Connects to ranks with a lower index, and accepts connections of those with a higher one."""
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
    """Returns a text that is equal for processes that can reach each other over abstract sockets."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
