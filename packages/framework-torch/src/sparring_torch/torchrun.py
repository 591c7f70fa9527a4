"""``torchrun --rdzv-backend sparring``: how torchrun's agents, one for each machine, find each other.

torchrun asks the entry point group ``torchrun.handlers`` for rendezvous of other makers. This one is
for jobs of a fixed number of machines: no node rank need be given, and every wait has an end. The
agents meet at a TCPStore that the machine of ``--rdzv-endpoint`` serves, and get their node ranks in
the order of arrival there. The ranks then use that same store (`sparring_torch.rendezvous`).

    torchrun --rdzv-backend sparring --rdzv-endpoint HOST:PORT --rdzv-id JOB --nnodes N …
    --rdzv-conf   join_timeout=SECONDS (600)   is_host=true|false (whether HOST is this machine)
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

__all__ = ["FixedRendezvousHandler", "create_handler", "get_handler"]

_DEFAULT_PORT = 29500
_DEFAULT_JOIN_SECONDS = 600
_GLANCE_SECONDS = 0.1
# How long the machine with the store stays for others that have not left it.
_LEAVING_SECONDS = 10.0

_logger = logging.getLogger(__name__)


def get_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torchrun calls first: returns the function that makes a handler."""
    return create_handler


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """The handler for what the command line said.

    Raises:
        ValueError: the number of machines is a range, or the endpoint makes no sense.
        RendezvousConnectionError: no store can be had at the endpoint.
    """
    if parameters.min_nodes != parameters.max_nodes:
        raise ValueError(
            f"rendezvous 'sparring': takes a fixed number of machines, found --nnodes "
            f"{parameters.min_nodes}:{parameters.max_nodes}; give one number"
        )
    host, _, port = parameters.endpoint.strip().rpartition(":")
    if not host:
        host, port = port, str(_DEFAULT_PORT)
    if not host or not port.isdecimal():
        raise ValueError(
            f"rendezvous 'sparring': --rdzv-endpoint must be HOST:PORT, found "
            f"{parameters.endpoint!r}"
        )
    timeout = parameters.get_as_int("join_timeout", _DEFAULT_JOIN_SECONDS)
    assert timeout is not None
    store, is_host = _open_store(host, int(port), parameters.get_as_bool("is_host"), timeout)
    return FixedRendezvousHandler(
        store,
        RendezvousStoreInfo(host, int(port)),
        is_host=is_host,
        run_id=parameters.run_id,
        num_nodes=parameters.max_nodes,
        timeout_seconds=timeout,
    )


def _open_store(
    host: str, port: int, is_host: bool | None, timeout_seconds: float
) -> tuple[Store, bool]:
    """Serves a store if HOST is this machine and nobody serves one yet; else connects to it.

    Returns it, and whether it is served here.
    """
    # torch exports it, but its types do not say so.
    make_store: Any = vars(dist)["TCPStore"]
    timeout = timedelta(seconds=timeout_seconds)
    try:
        listener = None if is_host is False else _listen(host, port)
        if listener is None and is_host:
            raise RendezvousConnectionError(
                f"rendezvous 'sparring': is_host is set, but {host}:{port} is no address of this "
                "machine or is in use; leave is_host out, or give another endpoint"
            )
        if listener is None:
            store = make_store(host, port, is_master=False, timeout=timeout)
        else:
            # Given a socket, it listens on that address and on no other. The socket is the store's.
            store = make_store(
                host,
                port,
                is_master=True,
                timeout=timeout,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
    except RuntimeError as error:
        raise RendezvousConnectionError(
            f"rendezvous 'sparring': no store answers at {host}:{port} within "
            f"{timeout_seconds:g} s: {error}; see whether torchrun runs on that machine"
        ) from error
    assert isinstance(store, Store)
    return store, listener is not None


def _listen(host: str, port: int) -> socket.socket | None:
    """A server socket at that address, if it is this machine's and free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=2048)
    except OSError:
        return None


class FixedRendezvousHandler(RendezvousHandler):
    """Gives node ranks to `num_nodes` agents in the order in which they come.

    Args:
        store: all agents' own.
        store_info: where it is, for the ranks.
        run_id: keeps jobs apart.
        num_nodes: agents in all.
        timeout_seconds: how long the first waits for the last.
        is_host: whether this process serves the store, which ends with it.
    """

    def __init__(
        self,
        store: Store,
        store_info: RendezvousStoreInfo,
        *,
        run_id: str,
        num_nodes: int,
        timeout_seconds: float,
        is_host: bool = False,
    ) -> None:
        self._store = PrefixStore(f"sparring-torchrun/{run_id}", store)
        self._store_info = store_info
        self._run_id = run_id
        self._num_nodes = num_nodes
        self._timeout_seconds = timeout_seconds
        self._is_host = is_host
        self._has_left = False

    def get_backend(self) -> str:
        return "sparring"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Joins the next round, and waits until it is full.

        Raises:
            RendezvousTimeoutError: it did not fill in time.
        """
        ticket = self._store.add("tickets", 1) - 1
        number, rank = divmod(ticket, self._num_nodes)
        wanted = (number + 1) * self._num_nodes
        limit = time.monotonic() + self._timeout_seconds
        while (arrived := self._store.add("tickets", 0)) < wanted:
            if time.monotonic() > limit:
                raise RendezvousTimeoutError(
                    f"rendezvous 'sparring': only {arrived - number * self._num_nodes} of "
                    f"{self._num_nodes} machines came within {self._timeout_seconds:g} s; look at "
                    "the others, then start all again with another --rdzv-id"
                )
            time.sleep(_GLANCE_SECONDS)
        return RendezvousInfo(
            PrefixStore(f"round-{number}", self._store),
            rank,
            self._num_nodes,
            self._store_info,
        )

    def is_closed(self) -> bool:
        return bool(self._store.check(["closed"]))

    def set_closed(self) -> None:
        self._store.set("closed", "1")

    def num_nodes_waiting(self) -> int:
        """None: a fixed number of machines came, and no more are wanted."""
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        """Closes the rendezvous, at the end of a job; False where the store was gone already.

        The machine with the store stays up to ten seconds for those that have not left it, as they
        may still be waiting there for the last agent's end. A second call does nothing.
        """
        if self._has_left:
            return True
        self._has_left = True
        try:
            self.set_closed()
            num_left = self._store.add("left", 1)
            if self._is_host:
                num_came = min(self._store.add("tickets", 0), self._num_nodes)
                limit = time.monotonic() + _LEAVING_SECONDS
                while num_left < num_came and time.monotonic() < limit:
                    time.sleep(_GLANCE_SECONDS)
                    num_left = self._store.add("left", 0)
        except RuntimeError as error:
            # All that could be told there is that this job has ended, which it has.
            _logger.info("rendezvous 'sparring': the store ended before this agent: %s", error)
            return False
        return True
