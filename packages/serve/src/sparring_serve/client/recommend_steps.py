"""Recommendations of a client, without a network: sends vectors to all shards and merges their best
rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set, Sized
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.adapter import format_suggestion
from sparring.errors import InvalidArgumentError, UnknownTableError
from sparring_serve.client.answer import ReplyVersion
from sparring_serve.client.arguments import check_ids, check_text, check_whole_number
from sparring_serve.client.failures import ReplicasFailedError
from sparring_serve.client.model_steps import compared_steps
from sparring_serve.client.rounds import Rounds, ShardMapMovedError
from sparring_serve.client.session import MAX_ATTEMPTS, Description, Session, Steps
from sparring_serve.tables.contract import VersionGoneError
from sparring_serve.wire.fields import MessageError, decode, encode
from sparring_serve.wire.messages import Missing, RecommendReply, RecommendRequest
from sparring_serve.wire.rows import as_bytes, read_ids

__all__ = ["Queries", "Recommendations", "RecommendQuery", "recommend_steps"]

Queries = npt.ArrayLike | Mapping[str, npt.ArrayLike]
"""``(q, dim)`` vectors; or table → ``(q,)`` keys or strings, whose rows in the table are the vectors.
Rows from which the model computes vectors are rejected: they are not in the space of its vectors."""


@dataclass(frozen=True, slots=True)
class Recommendations:
    """The best rows of each query, best first.

    Args:
        keys: ``(q, k)``; -1 if a query has fewer than k rows.
        scores: ``(q, k)`` float32 dot products; -inf if a query has fewer than k rows.
        counts: ``(q,)``, number of valid entries per query.
        version: Version of all rows, including the rows of the queries.
        found: ``(q,)``: whether the key of a query has a row; otherwise its initial value was used.
            None if the queries are vectors.
    """

    keys: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    version: ReplyVersion
    found: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class RecommendQuery:
    """Request for recommendations.

    Args:
        table: Table whose rows are compared.
        queries: Vectors, or keys of another table.
        k: Number of rows per query.
        exclude: Keys to exclude, for each query.
        version: Hash of a version; empty means the newest that all shards have.
    """

    table: str
    queries: Queries
    k: int
    exclude: Sequence[npt.ArrayLike] | None
    version: str


@dataclass(frozen=True, slots=True)
class _Part:
    """The best rows of one shard."""

    keys: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    version: ReplyVersion
    newest: str


def recommend_steps(
    session: Session, wanted: RecommendQuery, deadline: float
) -> Steps[Recommendations]:
    """Computes recommendations; see `LookupClient.recommend`."""
    check_text("table", wanted.table)
    check_text("version", wanted.version)
    check_whole_number("k", wanted.k)
    num_gone = 0
    while True:
        number = session.shards.number
        description = yield from session.description_steps(deadline)
        dims = description.dims
        if wanted.table not in dims:
            session.forget()
            raise UnknownTableError(
                f"table {wanted.table!r} is not served; {format_suggestion(wanted.table, dims)}",
                table=wanted.table,
            )
        try:
            pinned = _pinned(session, wanted, description)
            vectors, found = yield from _vectors(session, wanted, dims, pinned, deadline)
            parts = yield from _parts(session, wanted, vectors, pinned, deadline)
        except ShardMapMovedError as moved:
            session.take_map(moved, number)
        except VersionGoneError:
            # Servers switched to a newer version in the meantime.
            session.forget()
            num_gone += 1
            if wanted.version or num_gone == MAX_ATTEMPTS:
                raise
        else:
            session.learn({shard: each.newest for shard, each in enumerate(parts)})
            return _merged(parts, wanted.k, found)


def _pinned(session: Session, wanted: RecommendQuery, description: Description) -> str:
    """Returns the version for all calls; empty if there is only one call."""
    is_one_call = session.shards.num_shards == 1 and not isinstance(wanted.queries, Mapping)
    # Trainable tables have no versions; their servers reject the call with advice.
    has_versions = any(
        each.hash for shard in description.shards.values() for each in shard.versions
    )
    if wanted.version or is_one_call or not has_versions:
        return wanted.version
    version = session.common_version(description)
    if not version:
        raise VersionGoneError(
            "there is no version that all shards keep; wait until they have refreshed, or increase "
            "server.keep_versions"
        )
    return version


def _vectors(
    session: Session, wanted: RecommendQuery, dims: Mapping[str, int], version: str, deadline: float
) -> Steps[tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_] | None]]:
    """Returns the ``(q, dim)`` vectors, and for keys whether they have a row."""
    dim, given = dims[wanted.table], wanted.queries
    found = None
    if isinstance(given, Mapping):
        if len(given) != 1:
            raise InvalidArgumentError(
                f"queries must be vectors or the keys of one table, found {len(given)} tables; pass the "
                "keys of one table"
            )
        [of_queries] = given
        known = None
        is_unknown = of_queries in dims and of_queries != wanted.table and not _computed(dims)
        if version and is_unknown:
            known = yield from compared_steps(session, version, deadline)
        _check_space(wanted.table, of_queries, dims, known)
        seconds = max(deadline - session.clock(), 1e-3)
        answer = yield from session.pull_steps(given, Missing.INITIAL, version, seconds)
        [(table, vectors)] = answer.rows.items()
        if not answer.is_complete:
            raise ReplicasFailedError(
                f"queries of table {table!r}: no replica returned the rows of some keys; retry later"
            )
        found = answer.found[table]
    else:
        try:
            vectors = np.asarray(given)
        except ValueError as error:
            raise InvalidArgumentError(
                f"cannot convert queries to an array: {error}; pass vectors of shape (q, {dim})"
            ) from None
        if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
            raise InvalidArgumentError(
                f"queries must be an array of numbers of shape (q, {dim}) or the keys of a table, found "
                f"{vectors.dtype} {vectors.shape}"
            )
    if vectors.shape[1] != dim:
        raise InvalidArgumentError(
            f"queries have {vectors.shape[1]} elements, but rows of table {wanted.table!r} have {dim}; "
            "use vectors of the same size"
        )
    return np.ascontiguousarray(vectors, np.float32), found


_VECTORS = ".vectors"
"""End of the name of a table of vectors that a publisher computed from rows."""


def _computed(served: Mapping[str, int]) -> set[str]:
    """Returns the tables of vectors that the model computes from rows of other tables."""
    return {
        each for each in served if each.endswith(_VECTORS) and each.removesuffix(_VECTORS) in served
    }


def _check_space(
    table: str, of_queries: str, served: Mapping[str, int], known: tuple[str, ...] | None
) -> None:
    """Raises if rows of a table are inputs of the model, so that products with them mean nothing.

    Args:
        table: table whose rows are compared.
        of_queries: table whose rows are the queries.
        served: all tables; the model computes ``item.vectors`` from rows of ``item``.
        known: tables whose rows the model compares; None if this is unknown.
    """
    computed = _computed(served)
    if table == of_queries or {table, of_queries} <= computed:
        return
    if not computed:
        if known is None or {table, of_queries} <= set(known):
            return
        raise InvalidArgumentError(
            f"queries by keys of table {of_queries!r} for table {table!r}: the model of this version "
            "does not compare their rows, which are its inputs, so these products do not rank; use "
            "`sparring recommend` with the run, or pass vectors that you compute"
        )
    rows = table if table not in computed else of_queries
    raise InvalidArgumentError(
        f"queries by keys of table {of_queries!r} for table {table!r}: rows of table {rows!r} are inputs "
        "of the model and not its vectors, so these products do not rank; pass query vectors, which "
        f"the model computes, for table {min(computed)!r}, or use `sparring recommend`"
    )


def _parts(
    session: Session,
    wanted: RecommendQuery,
    vectors: npt.NDArray[np.float32],
    version: str,
    deadline: float,
) -> Steps[list[_Part]]:
    """Returns the best rows of each shard."""
    excluded, num_excluded = _excluded(wanted, len(vectors))
    num_shards = session.shards.num_shards
    requests = [
        RecommendRequest(
            wanted.table,
            version,
            as_bytes(vectors),
            wanted.k,
            as_bytes(excluded),
            as_bytes(num_excluded),
            shard,
            num_shards,
        )
        for shard in range(num_shards)
    ]
    parts: dict[int, _Part] = {}

    def accept(shard: int, content: bytes) -> None:
        parts[shard] = _part(decode(RecommendReply, content), len(vectors), wanted.k)

    calls = [(shard, encode(each)) for shard, each in enumerate(requests)]
    rounds = Rounds("Recommend", calls, accept)
    yield from session.run(rounds, deadline)
    failures = rounds.failures()
    if failures:
        if rounds.has_lost_version():
            raise VersionGoneError(
                f"recommendations of table {wanted.table!r}: version {version} is no longer kept; "
                "request the newest, or increase server.keep_versions"
            )
        raise failures[0][1]
    return [parts[shard] for shard in range(num_shards)]


def _excluded(
    wanted: RecommendQuery, num_queries: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the excluded keys, and their number per query."""
    if wanted.exclude is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    found = len(wanted.exclude) if isinstance(wanted.exclude, Sized) else repr(wanted.exclude)
    if found != num_queries or isinstance(wanted.exclude, (Mapping, Set)):
        raise InvalidArgumentError(
            f"exclude must contain a sequence of keys for each of {num_queries} queries, found {found}"
        )
    keys = [check_ids(wanted.table, each).astype(np.int64) for each in wanted.exclude]
    counts = np.array([len(each) for each in keys], np.int64)
    return np.concatenate([*keys, np.empty(0, np.int64)]), counts


def _part(answer: RecommendReply, num_queries: int, k: int) -> _Part:
    """Decodes a reply; raises `MessageError` if it does not match the request."""
    ids, counts = read_ids(answer.ids), read_ids(answer.num_ids)
    if (
        len(counts) != num_queries
        or ((counts < 0) | (counts > k)).any()
        or counts.sum() != len(ids)
        or len(answer.scores) != 4 * len(ids)
    ):
        raise MessageError(
            f"recommendations for {num_queries} queries: found {len(counts)} counts, {len(ids)} ids and "
            f"{len(answer.scores)} bytes of scores; client and server may be of incompatible releases"
        )
    keys = np.full((num_queries, k), -1, np.int64)
    scores = np.full((num_queries, k), -np.inf, np.float32)
    is_filled = np.arange(k) < counts[:, None]
    keys[is_filled] = ids
    scores[is_filled] = np.frombuffer(answer.scores, np.float32)
    its = answer.version
    version = ReplyVersion(its.run, its.step, its.hash)
    return _Part(keys, scores, counts, version, answer.newest)


def _merged(parts: Sequence[_Part], k: int, found: npt.NDArray[np.bool_] | None) -> Recommendations:
    """Merges the best rows of all shards."""
    keys = np.concatenate([each.keys for each in parts], axis=1)
    scores = np.concatenate([each.scores for each in parts], axis=1)
    is_empty = np.concatenate([np.arange(k) >= each.counts[:, None] for each in parts], axis=1)
    order = np.lexsort((keys, -scores, is_empty), axis=1)[:, :k]
    return Recommendations(
        np.take_along_axis(keys, order, axis=1),
        np.take_along_axis(scores, order, axis=1),
        np.minimum(np.sum([each.counts for each in parts], axis=0), k),
        parts[0].version,
        found,
    )
