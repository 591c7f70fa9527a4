"""Recommendations: finds the rows of a table with the largest dot products by comparing all rows."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring_packed import TopK, TopKSearch
from sparring_serve.service import LookupService, decode_request, parse_ids, version_message
from sparring_serve.status import Status, StatusError
from sparring_serve.wire.fields import Buffer, encode
from sparring_serve.wire.messages import RecommendReply, RecommendRequest, VersionMessage
from sparring_serve.wire.rows import as_bytes

__all__ = ["recommend"]

_NO_IDS = np.empty(0, np.int64)
_BLOCK_ROWS = 4096


def recommend(
    service: LookupService,
    content: Buffer,
    remaining_seconds: float,
    *,
    waited_seconds: float = 0.0,
) -> bytes:
    """Answers a RecommendRequest with a RecommendReply.

    Takes the arguments of `LookupService.pull`.

    Raises:
        StatusError: With one of the status codes listed in `lookup.proto`.
    """
    begin = time.perf_counter()
    table, code, num_queries = "", "OK", 0
    try:
        service.check_deadline(remaining_seconds)
        service.check_request_bytes(content)
        request: RecommendRequest = decode_request(RecommendRequest, content)
        [shape] = service.check_tables([(request.table, _NO_IDS)])
        _check_shard(service, request)
        table = shape.name
        queries = _queries(service, request, shape.dim)
        num_queries = len(queries)
        try:
            search = TopKSearch(queries, request.k, exclude=_excluded(request))
        except InvalidArgumentError as error:
            raise StatusError(Status.INVALID_ARGUMENT, str(error), reason="message") from None
        with service.admission.of(len(content) + search.memory_bytes):
            version = _compare(service, request, search, begin + remaining_seconds)
            newest = service.tables.versions()[0].hash
            return encode(_answer(search.result(), version, newest))
    except StatusError as refusal:
        code = refusal.status.value
        service.metrics.count_rejected(refusal.reason)
        raise
    except Exception:
        code = Status.INTERNAL.value
        raise
    finally:
        seconds = time.perf_counter() - begin + waited_seconds
        service.metrics.note_recommend(table, code, num_queries, seconds)


def _compare(
    service: LookupService, request: RecommendRequest, search: TopKSearch, end: float
) -> VersionMessage:
    """Compares all rows of one version and returns the version."""
    num_rows, cursor, version = 0, b"", request.version
    while True:
        chunk = service.scan_rows(request.table, cursor, _BLOCK_ROWS, version)
        search.add(chunk.ids, chunk.rows)
        num_rows += len(chunk.ids)
        cursor, version = chunk.cursor, chunk.version.hash
        if not cursor:
            return version_message(chunk.version)
        if time.perf_counter() > end:
            raise StatusError(
                Status.DEADLINE_EXCEEDED,
                f"the deadline passed after {num_rows:,} rows were compared; send fewer queries per "
                "call, increase the deadline, or use more shards",
            )


def _check_shard(service: LookupService, request: RecommendRequest) -> None:
    position = service.position
    asked, found = (request.shard, request.num_shards), (position.shard, position.shards.num_shards)
    if request.num_shards and asked != found:
        raise StatusError(
            Status.FAILED_PRECONDITION,
            f"the call is for shard {asked[0] + 1} of {asked[1]}, but this is shard {found[0] + 1} of "
            f"{found[1]}; use the attached shard map",
            reason="foreign_shard",
            shard_map=position.shards.to_bytes(),
        )


def _queries(
    service: LookupService, request: RecommendRequest, dim: int
) -> npt.NDArray[np.float32]:
    limits = service.limits
    if len(request.queries) % (4 * dim):
        raise StatusError(
            Status.INVALID_ARGUMENT,
            f"queries: {len(request.queries):,} bytes are not a multiple of a vector of table "
            f"{request.table!r}; send {4 * dim} bytes per query, {dim} elements of float32",
            reason="message",
        )
    queries = np.frombuffer(request.queries, np.float32).reshape(-1, dim)
    for found, most, what in (
        (len(queries), limits.max_queries, "queries"),
        (request.k, limits.max_k, "k"),
    ):
        if found > most:
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"{what}: found {found:,} in one call, and the maximum is {most:,}; send fewer, or "
                f"increase server.max_{what}",
                reason=f"max_{what}",
            )
    return queries


def _excluded(request: RecommendRequest) -> tuple[npt.ArrayLike, npt.ArrayLike] | None:
    if not len(request.num_excluded):
        return None
    counts = parse_ids(request.num_excluded)
    # `TopKSearch` rejects negative counts and counts beyond the keys, because the offsets are invalid.
    return parse_ids(request.excluded), np.concatenate(([0], np.cumsum(counts)))


def _answer(found: TopK, version: VersionMessage, newest: str) -> RecommendReply:
    is_filled = np.arange(found.keys.shape[1]) < found.counts[:, None]
    return RecommendReply(
        as_bytes(found.keys[is_filled]),
        as_bytes(found.scores[is_filled]),
        as_bytes(found.counts),
        version,
        newest,
    )
