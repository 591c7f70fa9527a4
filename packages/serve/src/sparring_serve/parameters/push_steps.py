"""Implements the operations of a client that updates tables as generators, which do not access the
network; see `client.session`.

The file is long because pushes, flushes and saves share their checks and errors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.adapter import format_suggestion
from sparring.errors import InvalidArgumentError, SnapshotError, SparringError, UnknownTableError
from sparring_serve.client.arguments import check_seconds, check_text
from sparring_serve.client.failures import (
    is_not_begun,
    is_replica_failure,
    make_status_error,
)
from sparring_serve.client.replicas import ReplicaOrder, pauses
from sparring_serve.client.rounds import (
    UNTIL_A_LEADER_ANSWERED,
    UNTIL_ANSWERED,
    Rounds,
    ShardMapMovedError,
)
from sparring_serve.client.session import Description, Session, Steps
from sparring_serve.client.transport import Outcome, Pause, Send
from sparring_serve.parameters.incarnations import Incarnations
from sparring_serve.parameters.push_window import Token
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.fields import MessageError, decode, encode
from sparring_serve.wire.messages import (
    FlushReply,
    FlushRequest,
    PushReply,
    PushRequest,
    SnapshotReply,
    SnapshotRequest,
    TableGradients,
    Wait,
)
from sparring_serve.wire.rows import as_bytes

__all__ = [
    "REQUEST_SECONDS",
    "PushFailedError",
    "PushResult",
    "ServiceSnapshot",
    "ShardCall",
    "TablePush",
    "attempt_calls",
    "flush_steps",
    "push_steps",
    "raise_failed",
    "describe_outcome",
    "save_seconds",
    "snapshot_steps",
]

REQUEST_SECONDS = 5.0
"""Time for which a save or load waits for a shard that is restarting."""


class PushFailedError(SparringError):
    """Not all shards executed a push or flush: repeat the push with `token`, or the flush. A
    repeated push is applied only by the shards that have not applied it.

    `done` contains the shards that succeeded; `reasons` contains the errors of the other shards.
    `token` is None if only a flush failed, and no push before it.
    """


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result of a push that all shards accepted.

    Args:
        token: Token of the push.
        step: Number of pushes that each shard had applied when it replied.
        was_known: Shards that already had the push, because a reply was lost.
        unreplicated: Shards whose servers have the push on one replica only, although
            `parameters.replication.acks` is ``follower``.
    """

    token: Token
    step: tuple[int, ...]
    was_known: tuple[int, ...]
    unreplicated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TablePush:
    """Gradients of one table.

    Args:
        ids: ``(n,)`` integers; gradients of repeated ids are added.
        gradients: ``(n, dim)``, sent as float32.
        update_method: Update method that the table must have; None accepts any.
        hyper: Hyper-parameters of this push. Only `lr` may differ from the value of the table.
    """

    ids: npt.ArrayLike
    gradients: npt.ArrayLike
    update_method: str | None = None
    hyper: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """Validated gradients of one table."""

    table: str
    ids: npt.NDArray[np.int64]
    gradients: npt.NDArray[np.float32]
    update_method: str
    hyper: str

    def at(self, positions: npt.NDArray[np.int64] | slice) -> TableGradients:
        return TableGradients(
            self.table,
            as_bytes(self.ids[positions]),
            as_bytes(self.gradients[positions]),
            self.update_method,
            self.hyper,
        )


@dataclass(slots=True)
class ShardCall:
    """Outcome of the call to one shard."""

    request: bytes
    answer: Any = None
    reason: Outcome | None = None


@dataclass(frozen=True, slots=True)
class ShardCalls:
    """Calls to all shards of a map, which another thread may replace in the session."""

    method: str
    shards: ShardReplicas
    calls: Sequence[ShardCall]
    answer: type[Any]
    """Message of the replies."""


def push_steps(
    session: Session,
    given: Mapping[str, TablePush],
    token: Token,
    wait: Wait,
    deadline: float,
    incarnations: Incarnations,
) -> Steps[PushResult]:
    """Pushes gradients; see `ParameterClient.push`."""
    is_sent = False
    while True:
        try:
            description = yield from session.description_steps(deadline)
        except SparringError as error:
            if not is_sent:
                raise
            raise PushFailedError(
                f"push {token.number} of client {token.client}: the shards changed, and some may not "
                f"have it: {error}. Push again with token=error.token",
                done=(), reasons={}, token=token,
            ) from error  # fmt: skip
        parts = _checked(given, description)
        shards, is_sent = session.shards, True
        addresses = [replicas[0] for replicas in shards.shards]
        push = PushRequest(
            client=token.client, sequence=token.number, wait=wait, map_number=shards.number
        )
        pushes = [
            replace(push, incarnation=incarnations.last(each), epoch=session.epochs.of(shard))
            for shard, each in enumerate(addresses)
        ]
        calls = [ShardCall(each) for each in _requests(parts, shards, pushes, description)]
        longest = description.max_deadline_seconds
        try:
            made = ShardCalls("Push", shards, calls, PushReply)
            yield from attempt_calls(session, made, deadline, longest)
        except ShardMapMovedError as moved:
            session.take_map(moved, shards.number)
            continue
        what = f"push {token.number} of client {token.client}"
        advice = "Check these shards, and push again with token=error.token"
        raise_failed(what, calls, shards, advice, token)
        restarted = incarnations.take([each.answer for each in calls], addresses, token.number)
        if restarted is not None:
            raise restarted
        known = tuple(shard for shard, each in enumerate(calls) if each.answer.was_known)
        alone = tuple(shard for shard, each in enumerate(calls) if each.answer.is_unreplicated)
        return PushResult(token, tuple(each.answer.step for each in calls), known, alone)


def flush_steps(
    session: Session,
    client: str,
    heard: dict[str, int],
    deadline: float,
    incarnations: Incarnations,
) -> Steps[tuple[int, ...]]:
    """Flushes all shards; see `ParameterClient.flush`.

    Args:
        session: Session with the servers.
        client: Name of the client in tokens.
        heard: Address → failure that it reported last; updated.
        deadline: Deadline on the session's clock.
        incarnations: Incarnations of the shards.
    """
    while True:
        description = yield from session.description_steps(deadline)
        shards, longest = session.shards, save_seconds(description)
        addresses = [replicas[0] for replicas in shards.shards]
        flush = FlushRequest(client, map_number=shards.number)
        flushes = [
            replace(flush, heard=heard.get(each, 0), epoch=session.epochs.of(shard))
            for shard, each in enumerate(addresses)
        ]
        calls = [ShardCall(encode(each)) for each in flushes]
        try:
            made = ShardCalls("Flush", shards, calls, FlushReply)
            yield from attempt_calls(session, made, deadline, longest)
            break
        except ShardMapMovedError as moved:
            session.take_map(moved, shards.number)
    token, advice = None, "Check these shards, and flush again"
    for address, call in zip(addresses, calls, strict=True):
        if call.answer is not None and call.answer.failure:
            heard[address] = call.answer.failure
            token = token or Token(client, call.answer.push)
            call.reason = Outcome(None, "FAILED_PRECONDITION", call.answer.why)
            call.answer = None
            advice = (
                "Check these shards; to repeat the failed push, call push with its gradients and "
                "token=error.token"
            )
    raise_failed("flush", calls, shards, advice, token)
    restarted = incarnations.take([each.answer for each in calls], addresses, 0)
    if restarted is not None:
        raise restarted
    return tuple(each.answer.step for each in calls)


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """A snapshot of all shards that was saved or loaded.

    Args:
        url: URL of the snapshot.
        step: Maximum number of pushes that a shard had applied.
        rows: Number of rows per table, over all shards.
    """

    url: str
    step: int
    rows: Mapping[str, int]


def snapshot_steps(
    session: Session,
    method: str,
    url: str | os.PathLike[str],
    deadline_seconds: float | None,
    tables: Collection[str] | None = None,
    accept_loss: bool = False,
) -> Steps[ServiceSnapshot]:
    """Saves or loads a snapshot; see `ParameterClient.save` and `load`."""
    if not isinstance(url, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"{method.lower()}: the snapshot must be a name, a path or a URL, found {url!r}"
        )
    url = check_text(f"{method.lower()}: the name of the snapshot", os.fspath(url))
    names = _table_names(tables)
    if not isinstance(accept_loss, bool):
        raise InvalidArgumentError(
            f"save: accept_loss must be True or False, found {accept_loss!r}; use accept_loss=True to "
            "save even if acknowledged pushes may be missing"
        )
    given = None if deadline_seconds is None else check_seconds(deadline_seconds, math.inf)
    description = yield from session.description_steps(session.deadline(None))
    max_seconds = save_seconds(description)
    seconds = max_seconds if given is None else min(given, max_seconds)
    what = f"{method.lower()} of {url or 'all tables'}"
    end = session.clock() + seconds
    yield from _reach_first(session, what, min(REQUEST_SECONDS, seconds / 2))
    # Sent only once, because the reply to a second attempt would not show whether the first
    # succeeded.
    request = encode(SnapshotRequest(url, names, accept_loss))
    replicas, wait = session.shards.shards[0], pauses()
    leader_by = session.clock() + min(REQUEST_SECONDS, seconds / 2)
    while True:
        for first in replicas:
            [outcome] = yield [Send(first, method, request, max(1e-3, end - session.clock()))]
            if not is_not_begun(outcome):
                break
        if len(replicas) == 1 or not is_not_begun(outcome) or session.clock() > leader_by:
            break
        yield Pause(next(wait))
    if outcome.answer is None:
        if outcome.status in ("INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED"):
            raise make_status_error(first, outcome)
        raise SnapshotError(
            f"{what}: shard 1 at {first}: {describe_outcome(outcome, seconds)}", url=url
        )
    try:
        answer: SnapshotReply = decode(SnapshotReply, outcome.answer)
    except MessageError as error:
        raise SnapshotError(
            f"{what}: cannot read the reply of {first}: {error}; check whether the snapshot exists",
            url=url,
        ) from None
    return ServiceSnapshot(answer.url, answer.step, {each.name: each.rows for each in answer.rows})


def _table_names(tables: Collection[str] | None) -> tuple[str, ...]:
    """Returns the names of the tables to load; empty for all.

    Raises:
        InvalidArgumentError: They are not names, or the collection is empty.
    """
    if tables is None:
        return ()
    is_of_names = isinstance(tables, Collection) and not isinstance(tables, (str, bytes))
    if not is_of_names or not len(tables):
        raise InvalidArgumentError(
            f"load: tables must contain at least one table name, found {tables!r}; use "
            "tables=['item'], or omit it to load everything"
        )
    return tuple(check_text("load: the name of a table", each) for each in tables)


def _reach_first(session: Session, what: str, seconds: float) -> Steps[None]:
    """Waits for the server that coordinates saves and loads, which may be restarting.

    Raises:
        SnapshotError: It cannot be reached; nothing was requested.
    """
    rounds = Rounds("Describe", [(0, b"")], lambda *_: None)
    shards, end = session.shards.shards, session.clock() + seconds
    yield from rounds.run(shards, ReplicaOrder(), session.clock, end)
    for _, error in rounds.failures():
        raise SnapshotError(f"{what}: nothing was changed: {error}") from error


def describe_outcome(outcome: Outcome, seconds: float) -> str:
    """Describes why an attempt failed."""
    if outcome.status == "DEADLINE_EXCEEDED":
        # These messages come from gRPC, not from the server.
        is_known = outcome.message.casefold() in ("", "deadline exceeded")
        return f"no reply within {seconds:.3g} s" + ("" if is_known else f": {outcome.message}")
    if outcome.status == "FAILED_PRECONDITION":
        return outcome.message
    return f"{outcome.status} {outcome.message}".rstrip()


def save_seconds(description: Description) -> float:
    """Returns the maximum deadline of saves, loads and flushes.

    Raises:
        InvalidArgumentError: The servers have another role.
    """
    answer = next(iter(description.shards.values()))
    if not answer.parameters.tables:
        raise InvalidArgumentError(
            "these servers have the role inference, which is read-only; connect to servers that were "
            "started with --role parameters"
        )
    return answer.parameters.save_seconds


def attempt_calls(
    session: Session, made: ShardCalls, deadline: float, longest_seconds: float
) -> Steps[None]:
    """Calls each shard until it has replied or rejected the call, or the deadline has passed."""

    def accept(shard: int, content: bytes) -> None:
        decoded = decode(made.answer, content)
        session.epochs.take(shard, decoded.epoch)
        made.calls[shard].answer = decoded

    requests = [(shard, each.request) for shard, each in enumerate(made.calls)]
    shards = made.shards.shards
    has_followers = any(len(each) > 1 for each in shards)
    policy = UNTIL_A_LEADER_ANSWERED if has_followers else UNTIL_ANSWERED
    rounds = Rounds(made.method, requests, accept, policy)
    yield from rounds.run(shards, session.order, session.clock, deadline, longest_seconds)
    for each, outcome in zip(made.calls, rounds.outcomes(), strict=True):
        each.reason = outcome


def raise_failed(
    what: str,
    calls: Sequence[ShardCall],
    shards: ShardReplicas,
    advice: str,
    token: Token | None,
) -> None:
    """Raises an error if a shard failed.

    Raises:
        InvalidArgumentError, AccessError: A shard rejected the request, and no shard executed it.
        PushFailedError: In all other cases.
    """
    reasons = {
        shard: each.reason or Outcome(None, "DEADLINE_EXCEEDED")
        for shard, each in enumerate(calls)
        if each.answer is None
    }
    if not reasons:
        return
    done = tuple(shard for shard, each in enumerate(calls) if each.answer is not None)
    shard, first = next(iter(reasons.items()))
    is_refused = not is_replica_failure(first) and first.status != "FAILED_PRECONDITION"
    if is_refused and not done:
        raise make_status_error(shards.shards[shard][0], first)
    listed = "; ".join(
        f"shard {shard + 1} at {' or '.join(shards.shards[shard])}: {each.status} {each.message}".rstrip()
        for shard, each in reasons.items()
    )
    others = f"; shards {', '.join(str(each + 1) for each in done)} succeeded" if done else ""
    raise PushFailedError(
        f"{what}: {listed}{others}. {advice}", done=done, reasons=reasons, token=token
    )


def _checked(given: Mapping[str, TablePush], description: Description) -> list[_Part]:
    """Validates as much as possible before anything is sent."""
    dims = description.dims
    answer = next(iter(description.shards.values()))
    methods = {each.table: each for each in answer.parameters.tables}
    save_seconds(description)
    parts = []
    for table, each in given.items():
        if table not in methods:
            raise UnknownTableError(
                f"push: table {table!r} is not served; {format_suggestion(table, dims)}",
                table=table,
            )
        if len(declared := description.declarations[table]) > 1:
            listed = "; ".join(f"{what} in shards {at}" for what, at in declared.items())
            raise InvalidArgumentError(
                f"push: shards declare table {table!r} differently: {listed}; no row was changed. Start "
                "all servers with the same parameters.tables",
                table=table,
            )
        part = _part(table, each, dims[table], methods[table].update_method)
        if (
            answer.parameters.non_finite_gradients == "raise"
            and not np.isfinite(part.gradients).all()
        ):
            raise InvalidArgumentError(
                f"push to table {table!r}: gradients contain NaN or infinity, and "
                "parameters.non_finite_gradients of the service is raise; no row was changed. Reduce "
                "the learning rate, clip gradients, or start the service with non_finite_gradients: skip",
                table=table,
            )
        parts.append(part)
    return parts


def _part(table: str, given: TablePush, dim: int, method: str) -> _Part:
    try:
        ids, gradients = np.asarray(given.ids), np.asarray(given.gradients)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"push to table {table!r}: cannot convert ids and gradients to arrays: {error}; pass "
            "integers (n,) and numbers (n, dim)"
        ) from None
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"push to table {table!r}: ids must be a one-dimensional array of integers, found dtype "
            f"{ids.dtype}, shape {ids.shape}; flatten and convert them",
            table=table,
        )
    if ids.dtype == np.uint64 and ids.size and ids.max() > np.iinfo(np.int64).max:
        raise InvalidArgumentError(
            f"push to table {table!r}: id {ids.max()} is beyond int64; map ids to int64 first",
            table=table,
        )
    is_real = gradients.dtype.kind in "fiu" or gradients.dtype.name == "bfloat16"
    if gradients.shape != (len(ids), dim) or (gradients.size and not is_real):
        raise InvalidArgumentError(
            f"push to table {table!r}: gradients of {len(ids):,} ids must be real numbers of shape "
            f"({len(ids)}, {dim}), because the table has dim {dim} in the service; found dtype "
            f"{gradients.dtype}, shape {gradients.shape}",
            table=table,
        )
    if given.update_method is not None and (
        check_text("update_method", given.update_method) != method
    ):
        raise InvalidArgumentError(
            f"push to table {table!r}: the update method is {given.update_method!r}, but the service "
            f"uses {method!r} and stores its state; use that method, or change the declaration of the "
            "service",
            table=table,
        )
    return _Part(
        table,
        np.ascontiguousarray(ids, np.int64),
        np.ascontiguousarray(gradients, np.float32),
        given.update_method or "",
        _hyper_text(table, given.hyper),
    )


def _hyper_text(table: str, given: Mapping[str, Any] | None) -> str:
    """Encodes hyper-parameters as JSON; numbers may be NumPy or framework scalars."""
    if given is None or (isinstance(given, Mapping) and not given):
        return ""
    try:
        return json.dumps(dict(given), default=lambda each: each.item())
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"push to table {table!r}: hyper-parameters must be a mapping of names to values, found "
            f"{given!r}; use for example hyper={{'lr': 0.1}}",
            table=table,
        ) from error


def _requests(
    parts: Sequence[_Part],
    shards: ShardReplicas,
    pushes: Sequence[PushRequest],
    description: Description,
) -> list[bytes]:
    """Creates one request per shard, even if it is empty, so that all shards count the same
    steps."""
    requests = []
    owners = [shards.shard_of(each.ids) if shards.num_shards > 1 else None for each in parts]
    for shard in range(shards.num_shards):
        tables = tuple(
            part.at(slice(None) if owner is None else np.flatnonzero(owner == shard))
            for part, owner in zip(parts, owners, strict=True)
        )
        num_ids = sum(len(each.ids) // 8 for each in tables)
        request = encode(replace(pushes[shard], tables=tables))
        max_bytes = min(each.max_bytes for each in description.shards.values())
        if num_ids > description.max_ids or len(request) > max_bytes:
            raise InvalidArgumentError(
                f"push: found {num_ids:,} ids and {len(request):,} bytes for shard {shard + 1}, and the "
                f"maximum is {description.max_ids:,} ids and {max_bytes:,} bytes; split the push, or "
                "add shards"
            )
        requests.append(request)
    return requests
