"""Errors of a client: converts statuses of a service to exceptions with a fix."""

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
    "is_not_begun",
    "is_not_leader",
    "is_replica_failure",
    "make_status_error",
]


class ReplicasFailedError(StorageIOError):
    """No replica of a shard replied: check that its servers run; `reasons` contains the reason by
    address."""


class AccessError(SparringError):
    """The token is unknown, or its role does not permit the call: use the right token_file."""


class ShardRestartedError(SparringError):
    """A shard of trainable tables restarted and lost pushes that it had acknowledged to this client.

    The first push or flush that reaches the shard raises it, once per restart. All shards have
    executed that call; do not repeat it. Either `ParameterClient.load` a snapshot and continue from
    its step, or continue and accept the loss with ``save(accept_loss=True)``.

    `shards` contains the numbers of the shards, from 0. `lost` contains, for each of them, the
    numbers of this client's acknowledged pushes that it does not have; pushes of other clients may
    also be lost.
    """


class StaleRowsError(SparringError):
    """The rows of all replicas are older than requested: check why no newer version is published."""


# Matches gRPC's messages for failed connections and name lookups.
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
"""Statuses after which another replica or another attempt may succeed."""


NOT_LEADER = "this replica is not the leader"
"""Beginning of the message of a replica that must not answer, after the name of the call."""


def is_not_leader(outcome: Outcome) -> bool:
    """Returns whether a replica has rejected a call, because another one leads its shard."""
    return outcome.status == "UNAVAILABLE" and NOT_LEADER in outcome.message


def is_not_begun(outcome: Outcome) -> bool:
    """Returns whether a replica has certainly not begun a call, so that another one can be called."""
    return is_not_leader(outcome) or (
        outcome.status == "UNAVAILABLE" and _NOT_CONNECTED.search(outcome.message) is not None
    )


def is_replica_failure(outcome: Outcome) -> bool:
    """Returns whether another replica may succeed."""
    return outcome.status in REPLICA_FAILURES


def make_replicas_error(
    shard: int, reasons: Mapping[str, Outcome], seconds: float
) -> SparringError:
    """Returns the error of a call that failed on all replicas within a number of seconds."""
    listed = "; ".join(
        f"{address}: {each.status} {each.message}".rstrip() for address, each in reasons.items()
    )
    statuses = {each.status for each in reasons.values()}
    message = f"shard {shard + 1}: no replica replied ({listed})"
    details = {"shard": shard, "reasons": dict(reasons)}
    if not reasons or statuses == {"DEADLINE_EXCEEDED"}:
        return DeadlineError(
            f"{message} within {seconds:.3g} s; increase client.deadline_seconds, or check why these "
            "servers do not reply",
            **details,
        )
    if "NOT_FOUND" in statuses:
        return VersionGoneError(f"{message}; request the newest version", **details)
    if "FAILED_PRECONDITION" in statuses:
        return StaleRowsError(
            f"{message}; publish a version, or increase client.max_staleness_seconds", **details
        )
    return ReplicasFailedError(f"{message}; {_advice(reasons)}", **details)


def _advice(reasons: Mapping[str, Outcome]) -> str:
    if any("has used its quota" in each.message for each in reasons.values()):
        return "the servers limit the rate of this client"
    if any(each.status == "RESOURCE_EXHAUSTED" for each in reasons.values()):
        return (
            "the servers have too many concurrent calls: increase server.threads or add replicas, send "
            "fewer calls with more ids each, or increase client.deadline_seconds"
        )
    if any(_NOT_CONNECTED.search(each.message) for each in reasons.values()):
        return "start one, or check the addresses in shards"
    return "check the logs of these servers"


def make_status_error(address: str, outcome: Outcome) -> SparringError:
    """Returns the error of a call that all replicas would reject."""
    message = f"{address}: {outcome.message or outcome.status}"
    if outcome.status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return AccessError(message, address=address)
    if outcome.status == "UNIMPLEMENTED":
        return StorageIOError(
            f"{message}; this client is {release()}, and the server is older or not a lookup service; "
            "upgrade the server, or check the address",
            address=address,
        )
    return InvalidArgumentError(message, address=address)
