"""Checks the eviction policy of Redis servers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from sparring.errors import InvalidArgumentError
from sparring_redis.connections.client import Client, Command
from sparring_redis.connections.connection import encode_command
from sparring_redis.connections.deadline import Deadline

__all__ = ["check_eviction_policy"]

_log = logging.getLogger(__name__)

_KEEPING_POLICIES = ("noeviction", "volatile-")
"""Policies that do not evict rows. `volatile-` policies only evict keys with a TTL, and rows have
no TTL."""


def check_eviction_policy(client: Client, slot: int, deadline: Deadline) -> None:
    """Rejects servers that evict rows when their memory is full.

    It reads the policy with INFO, which requires fewer permissions than CONFIG GET. If INFO is not
    permitted, or does not contain the policy, a warning is logged.

    Args:
        client: the client of the servers.
        slot: a slot of the server to query first; after that all servers of a cluster are known.
        deadline: the deadline for opening the table.

    Raises:
        InvalidArgumentError: a server has a policy that evicts rows.
        DeadlineError, StorageIOError: Redis failed.
    """
    replies = _ask(client, [slot], deadline)
    asked = client.topology.find_server(slot)
    others = [
        each for each in client.topology.slots() if client.topology.find_server(each) is not asked
    ]
    silent: Exception | str | None = None
    for reply in [*replies, *_ask(client, others, deadline)]:
        policy = None if isinstance(reply, ResponseError) else _policy_of(bytes(reply))
        if policy is None:
            silent = reply if isinstance(reply, ResponseError) else "INFO contains no policy"
        elif not policy.startswith(_KEEPING_POLICIES):
            raise InvalidArgumentError(
                f"{client.topology.place}: maxmemory-policy {policy!r} silently evicts whole buckets of "
                "rows when memory is full; set noeviction (CONFIG SET maxmemory-policy noeviction, and "
                "in redis.conf), or set allow_eviction: true if rows may be lost",
                policy=policy,
            )
    if silent is not None:
        _log.warning(
            "%s: cannot determine whether it evicts rows when memory is full (%s); check that its "
            "maxmemory-policy is noeviction, and permit +info",
            client.topology.place,
            silent,
        )


def _ask(client: Client, slots: Sequence[int], deadline: Deadline) -> list[Any]:
    commands = [Command(slot, encode_command(["INFO", "memory"])) for slot in slots]
    return client.run(commands, "opening", is_write=False, may_be_refused=True, deadline=deadline)


def _policy_of(info: bytes) -> str | None:
    for line in info.splitlines():
        name, _, value = line.partition(b":")
        if name == b"maxmemory_policy":
            return value.decode(errors="replace")
    return None
