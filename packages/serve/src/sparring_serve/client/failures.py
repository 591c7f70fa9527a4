"""Errors of a client: the statuses of a service, as errors with a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparring.errors import DeadlineError, InvalidArgumentError, SparringError, StorageIOError
from sparring_serve.client.transport import Outcome
from sparring_serve.release import release
from sparring_serve.tables.contract import VersionGoneError

__all__ = [
    "REPLICA_FAILURES",
    "AccessError",
    "ReplicasFailedError",
    "ShardRestartedError",
    "StaleRowsError",
    "make_replicas_error",
    "is_replica_failure",
    "make_status_error",
]


class ReplicasFailedError(StorageIOError):
    """No replica of a shard answered: see whether its servers run; `reasons` has why, by address."""


class AccessError(SparringError):
    """A server knows no such token, or its role may not do this: give the right token_file."""


class ShardRestartedError(SparringError):
    """A shard that learns restarted without all pushes that it had acknowledged to this client.

    It is raised once per restart, by the first push or flush that reaches the shard. That call itself
    was done by all shards; do not repeat it. `ParameterClient.load` a snapshot and continue from its
    step, or continue, and accept the loss with ``save(accept_loss=True)``.

    `shards` has the numbers of the shards, from 0. `lost` has for each of them the numbers of this
    client's acknowledged pushes that it does not have; pushes of other clients may be lost, too.
    """


class StaleRowsError(SparringError):
    """All replicas serve rows older than was asked: see why nothing newer is published."""


# Of gRPC's messages for a connection or a name that could not be had.
_NOT_CONNECTED = re.compile("failed to connect|refused|resol|DNS", re.IGNORECASE)

REPLICA_FAILURES = frozenset(
    {
        "UNAVAILABLE",
        "RESOURCE_EXHAUSTED",
        "DEADLINE_EXCEEDED",
        "CANCELLED",
        "INTERNAL",
        "UNKNOWN",
        "ABORTED",
        "DATA_LOSS",
    }
)
"""Statuses of failures after which another replica, or another attempt, may give an answer."""


def is_replica_failure(outcome: Outcome) -> bool:
    """Whether another replica may answer what this one did not."""
    return outcome.status in REPLICA_FAILURES


def make_replicas_error(shard: int, reasons: Mapping[str, Outcome]) -> SparringError:
    """The error of a call that every replica was asked in vain."""
    listed = "; ".join(
        f"{address}: {each.status} {each.message}".rstrip() for address, each in reasons.items()
    )
    statuses = {each.status for each in reasons.values()}
    message = f"shard {shard + 1}: no replica answered ({listed})"
    details = {"shard": shard, "reasons": dict(reasons)}
    if not reasons or statuses == {"DEADLINE_EXCEEDED"}:
        return DeadlineError(
            f"{message}; set a longer client.deadline_seconds, or see why these servers do not answer",
            **details,
        )
    if "NOT_FOUND" in statuses:
        return VersionGoneError(f"{message}; ask for the newest version", **details)
    if "FAILED_PRECONDITION" in statuses:
        return StaleRowsError(f"{message}; publish a version, or allow a greater age", **details)
    return ReplicasFailedError(f"{message}; {_advice(reasons)}", **details)


def _advice(reasons: Mapping[str, Outcome]) -> str:
    if any(each.status == "RESOURCE_EXHAUSTED" for each in reasons.values()):
        return (
            "the servers have too many calls at once: raise server.threads or add replicas, send fewer "
            "calls at once with more ids each, or set a longer client.deadline_seconds"
        )
    if any(_NOT_CONNECTED.search(each.message) for each in reasons.values()):
        return "start one, or see whether the addresses in shards are right"
    return "see the logs of these servers"


def make_status_error(address: str, outcome: Outcome) -> SparringError:
    """The error of a call that any replica would refuse."""
    message = f"{address}: {outcome.message or outcome.status}"
    if outcome.status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return AccessError(message, address=address)
    if outcome.status == "UNIMPLEMENTED":
        return StorageIOError(
            f"{message}; this client is {release()}: what listens there is older, or no lookup service; "
            "serve with the release of this client, or see that the address is right",
            address=address,
        )
    return InvalidArgumentError(message, address=address)
