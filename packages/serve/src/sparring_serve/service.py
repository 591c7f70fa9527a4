"""The lookup service without a network: takes request bytes, returns reply bytes or raises
`StatusError`.

The file is long because all methods of servers of both roles share the checks of requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import numpy as np

from sparring.adapter import format_suggestion
from sparring.contracts import partition
from sparring.errors import DeadlineError, InvalidArgumentError, StorageIOError, UnsupportedError
from sparring_serve.limits import Admission, Limits, Quotas
from sparring_serve.metrics import ServingMetrics
from sparring_serve.release import release
from sparring_serve.request_log import LoggedKind, RequestLog
from sparring_serve.status import Status, StatusError
from sparring_serve.tables.contract import (
    FoundRows,
    Ids,
    LookupResult,
    ReserveRows,
    ScanResult,
    ServingTables,
    TableShape,
    VersionGoneError,
)
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.fields import Buffer, MessageError, decode, encode
from sparring_serve.wire.messages import (
    DescribeReply,
    Missing,
    ParametersMessage,
    PullReply,
    PullRequest,
    RowDtype,
    ScanReply,
    ScanRequest,
    TableMessage,
    TableRows,
    VersionMessage,
)
from sparring_serve.wire.pull_reply import IN_PLACE_BYTES, ReplyInPlace
from sparring_serve.wire.rows import as_bytes, encode_rows, pack_found, read_ids, row_bytes

__all__ = ["LookupService", "ShardPosition", "parse_ids", "decode_request", "version_message"]

_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """The shard that a server serves, and the shard map that defines it."""

    shards: ShardReplicas
    shard: int = 0


class Leadership(Protocol):
    """Role of one of the replicas of a shard whose tables learn."""

    def check_leader(self, what: str, known_epoch: int = 0) -> int:
        """Returns the epoch; raises `StatusError` if this replica must not answer."""
        ...


@dataclass(slots=True)
class LookupService:
    """Answers lookup requests from the tables of one server. All methods are thread-safe.

    Args:
        tables: Tables to serve.
        position: Shard of this server; it rejects keys of other shards' partitions.
        limits: Limits of a single call.
        admission: Limits the total size of all concurrent calls.
        metrics: Receives the counters.
        parameters: Description of the trainable tables, for servers of the role ``parameters``.
        log: Receives the requests that were answered, if given.
        quotas: Counts the ids of calls by client, if given.
        leadership: Decides whether this replica may answer; None: all replicas answer.
    """

    tables: ServingTables
    position: ShardPosition
    limits: Limits = field(default_factory=Limits)
    admission: Admission = field(default_factory=lambda: Admission(256 << 20))
    metrics: ServingMetrics = field(default_factory=ServingMetrics)
    parameters: ParametersMessage = field(default_factory=ParametersMessage)
    log: RequestLog | None = None
    quotas: Quotas | None = None
    leadership: Leadership | None = None
    is_draining: bool = False
    read_map: Callable[[], None] | None = None
    """Reads the shard map again, if it can change while the server runs."""
    clock: Callable[[], float] = time.time

    @property
    def is_ready(self) -> bool:
        """Whether the service accepts lookups."""
        return not self.is_draining

    def pull(
        self, content: Buffer, remaining_seconds: float, *, waited_seconds: float = 0.0
    ) -> bytes:
        """Answers a PullRequest with a PullReply.

        Args:
            content: The encoded request.
            remaining_seconds: Time until the caller's deadline.
            waited_seconds: Time that the call waited for a thread; included in `pull_seconds`.

        Raises:
            StatusError: With one of the status codes listed in `lookup.proto`.
        """
        begin = time.perf_counter() - waited_seconds
        names: tuple[str, ...] = ()
        code, num_ids, num_found = "OK", 0, 0
        try:
            self.check_deadline(remaining_seconds)
            self.check_request_bytes(content)
            request = decode_request(PullRequest, content)
            names = tuple(each.table for each in request.tables)
            asked = [(each.table, parse_ids(each.ids)) for each in request.tables]
            num_ids = sum(len(ids) for _, ids in asked)
            answer, num_found = self._pull(request, asked, content)
            self.check_leader()
            return answer
        except StatusError as refusal:
            code = refusal.status.value
            self.metrics.count_rejected(refusal.reason)
            raise
        except Exception:
            code = Status.INTERNAL.value
            raise
        finally:
            known = self.tables.shapes()
            # A label for each unknown name would let callers create any number of time series.
            counted = {name if name in known else "" for name in names} or ("",)
            seconds = time.perf_counter() - begin
            self.metrics.note_pull(counted, code, (num_ids, num_found), seconds)
            self.charge(num_ids)

    def check_leader(self, known_epoch: int = 0) -> int:
        """Returns the epoch of this server; 0 if all replicas answer lookups.

        Args:
            known_epoch: Highest epoch that the caller knows.

        Raises:
            StatusError: Another replica is the leader of the shard, and only that one answers.
        """
        if self.leadership is None:
            return 0
        return self.leadership.check_leader("pull", known_epoch)

    def charge(self, num_ids: int) -> None:
        """Counts ids of the client whose call this thread answers, if it has a quota."""
        if self.quotas is not None:
            self.quotas.charge(num_ids)

    def _pull(
        self, request: PullRequest, asked: list[tuple[str, Ids]], content: Buffer
    ) -> tuple[bytes, int]:
        dtype = _known(RowDtype, "row_dtype", request.row_dtype)
        missing = _known(Missing, "missing", request.missing)
        shapes = self.check_tables(asked)
        answer_bytes = sum(
            len(ids) * (row_bytes(shape.dim, dtype) + 1)
            for shape, (_, ids) in zip(shapes, asked, strict=True)
        )
        if answer_bytes > self.limits.max_bytes:
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"the reply would have {answer_bytes:,} bytes, and the maximum is "
                f"{self.limits.max_bytes:,}; send fewer ids per call",
                reason="max_bytes",
            )
        epoch = self.check_leader(request.epoch)
        with self.admission.of(len(content) + answer_bytes):
            is_large = answer_bytes >= IN_PLACE_BYTES and missing != Missing.ONLY_FOUND
            sizes = [
                (shape.name, shape.dim, len(ids))
                for shape, (_, ids) in zip(shapes, asked, strict=True)
            ]
            in_place = ReplyInPlace(sizes, dtype)
            looked = self.lookup(
                asked, dtype, missing, request.version, accepts_partial=request.accepts_partial,
                reserve_rows=in_place.reserve_rows if is_large else None,
            )  # fmt: skip
            age = self.compute_age(looked)
            if request.max_staleness_seconds > 0 and age > request.max_staleness_seconds:
                raise StatusError(
                    Status.FAILED_PRECONDITION,
                    f"rows are {age:.3g} s old, and max_staleness_seconds is "
                    f"{request.max_staleness_seconds:.3g}; check that versions are still "
                    "published, or increase max_staleness_seconds",
                    reason="stale",
                )
            if self.log is not None:
                self.log.note(LoggedKind.PULL, looked.version.hash, content)
            num_found = sum(int(np.count_nonzero(each.found)) for each in looked.tables)
            answer = PullReply(
                (),
                version_message(looked.version),
                age,
                self.tables.versions()[0].hash,
                looked.failure,
                self.parameters.incarnation,
                epoch=epoch,
            )
            if in_place.is_used:
                found = [each.found for each in looked.tables]
                del looked  # its rows are in the reply
                return in_place.finish(found, answer), num_found
            tables = tuple(
                self._table_rows(shape, found, dtype, missing)
                for shape, found in zip(shapes, looked.tables, strict=True)
            )
            return encode(replace(answer, tables=tables)), num_found

    def lookup(
        self,
        asked: list[tuple[str, Ids]],
        dtype: RowDtype,
        missing: Missing,
        version: str,
        *,
        accepts_partial: bool = False,
        reserve_rows: ReserveRows | None = None,
    ) -> LookupResult:
        """Reads rows of one version.

        `asked`, `dtype`, `missing`, `version` and `reserve_rows` are those of `ServingTables.lookup`.

        Args:
            accepts_partial: Whether some of the rows may be marked as failed.

        Raises:
            StatusError: Rows could not be read, and the caller does not accept partial results or all
                rows failed.
        """
        wanted = Missing.INITIAL if missing == Missing.INITIAL else Missing.ZERO
        self.check_leader()
        try:
            looked = self.tables.lookup(asked, dtype, wanted, version, reserve_rows)
        except VersionGoneError as error:
            raise StatusError(Status.NOT_FOUND, str(error), reason="version_gone") from None
        except (StorageIOError, DeadlineError) as error:
            # The backend failed, but another replica may have the rows in its cache.
            raise StatusError(Status.UNAVAILABLE, str(error), reason="backend") from None
        if looked.failure:
            self._check_partial(looked, accepts_partial)
        self.check_leader()
        return looked

    def _check_partial(self, looked: LookupResult, accepts_partial: bool) -> None:
        num_failed = sum(
            int(np.count_nonzero(each.failed)) for each in looked.tables if each.failed is not None
        )
        num_read = sum(len(each.found) for each in looked.tables) - num_failed
        if accepts_partial and num_read:
            self.metrics.count_degraded(num_failed, "backend", "failed")
            return
        # Another replica may have the rows in its cache.
        raise StatusError(Status.UNAVAILABLE, looked.failure, reason="backend")

    def _table_rows(
        self, shape: TableShape, found: FoundRows, dtype: RowDtype, missing: Missing
    ) -> TableRows:
        rows = found.rows[found.found] if missing == Missing.ONLY_FOUND else found.rows
        is_packed = rows.dtype == np.uint8
        content = as_bytes(rows) if is_packed else encode_rows(rows, dtype)
        failed = b"" if found.failed is None else pack_found(found.failed)
        return TableRows(shape.name, shape.dim, content, pack_found(found.found), failed)

    def scan(self, content: Buffer, remaining_seconds: float) -> bytes:
        """Answers a ScanRequest with a ScanReply.

        Args:
            content: The encoded request.
            remaining_seconds: Time until the caller's deadline.

        Raises:
            StatusError: With one of the status codes listed in `lookup.proto`.
        """
        self.check_deadline(remaining_seconds)
        request: ScanRequest = decode_request(ScanRequest, content)
        (shape,) = self.check_tables([(request.table, _NO_IDS)])
        bytes_of_row = 8 + row_bytes(shape.dim, RowDtype.FLOAT32)
        max_rows = min(request.max_rows, self.limits.max_bytes // bytes_of_row)
        if max_rows < 1:
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"max_rows must be at least 1, found {request.max_rows}; a row has {bytes_of_row:,} "
                f"bytes, and a reply has at most {self.limits.max_bytes:,}",
                reason="message",
            )
        with self.admission.of(max_rows * bytes_of_row):
            found = self.scan_rows(request.table, bytes(request.cursor), max_rows, request.version)
            return encode(
                ScanReply(
                    as_bytes(found.ids),
                    as_bytes(found.rows),
                    found.cursor,
                    version_message(found.version),
                )
            )

    def scan_rows(self, table: str, cursor: bytes, max_rows: int, version: str) -> ScanResult:
        """Returns a chunk of rows like `ServingTables.scan`, but raises `StatusError`.

        `table`, `cursor`, `max_rows` and `version` are those of `ServingTables.scan`.

        Raises:
            StatusError: The version is no longer kept, the cursor is invalid, or the tables do not
                support scans.
        """
        try:
            return self.tables.scan(table, cursor, max_rows, version)
        except VersionGoneError as error:
            raise StatusError(Status.NOT_FOUND, str(error), reason="version_gone") from None
        except InvalidArgumentError as error:
            raise StatusError(Status.INVALID_ARGUMENT, str(error), reason="message") from None
        except UnsupportedError as error:
            raise StatusError(Status.INVALID_ARGUMENT, str(error), reason="scan") from None

    def describe(self) -> DescribeReply:
        """Returns the tables, versions, limits and the shard map."""
        versions = self.tables.versions()
        return DescribeReply(
            tuple(
                TableMessage(each.name, each.dim, each.dtype, each.num_rows, each.initial)
                for each in self.tables.shapes().values()
            ),
            tuple(map(version_message, versions)),
            max(0.0, self.clock() - versions[0].published),
            self.position.shards.to_message(),
            self.position.shard,
            self.limits.max_ids,
            self.limits.max_bytes,
            self.limits.max_deadline_seconds,
            self.is_ready,
            self.parameters,
            self.tables.not_fresh,
            self.tables.gate,
        )

    def compute_age(self, looked: LookupResult) -> float:
        """Returns the seconds since the version was published.

        Args:
            looked: Result of `lookup`.
        """
        return max(0.0, self.clock() - looked.version.published)

    def check_deadline(self, remaining_seconds: float) -> None:
        """Raises `StatusError` if the deadline is missing, too long or has passed.

        Args:
            remaining_seconds: Time until the caller's deadline; infinite if it has none.
        """
        most = self.limits.max_deadline_seconds
        # gRPC rounds deadlines up by a few percent.
        if not remaining_seconds <= 1.05 * most:
            given = "none" if not math.isfinite(remaining_seconds) or remaining_seconds > 1e6 else (
                f"{remaining_seconds:.3g} s"
            )  # fmt: skip
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"the call must have a deadline of at most {most:g} s, found {given}; set one",
                reason="deadline",
            )
        if remaining_seconds <= 0:
            raise StatusError(
                Status.DEADLINE_EXCEEDED,
                "the deadline passed before the call began; increase it, or increase server.threads",
            )

    def check_request_bytes(self, content: Buffer) -> None:
        """Raises `StatusError` if the request exceeds the maximum size.

        Args:
            content: The encoded request.
        """
        if len(content) > self.limits.max_bytes:
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"the request has {len(content):,} bytes, and the maximum is "
                f"{self.limits.max_bytes:,}; send fewer ids per call",
                reason="max_bytes",
            )

    def check_tables(self, asked: list[tuple[str, Ids]]) -> list[TableShape]:
        """Checks the tables and ids of a request and returns the shapes of its tables.

        Args:
            asked: Tables and ids of the request.

        Raises:
            StatusError: A table is unknown, a key belongs to another shard, or the request exceeds a
                limit.
        """
        if not self.is_ready:
            raise StatusError(Status.UNAVAILABLE, "this server is draining; use another replica")
        limits, known = self.limits, self.tables.shapes()
        num_ids = sum(len(ids) for _, ids in asked)
        for found, most, what in (
            (len(asked), limits.max_tables, "tables"),
            (num_ids, limits.max_ids, "ids"),
        ):
            if found > most:
                raise StatusError(
                    Status.INVALID_ARGUMENT,
                    f"the call has {found:,} {what}, and the maximum is {most:,}; split it",
                    reason=f"max_{what}",
                )
        if len({table for table, _ in asked}) < len(asked):
            raise StatusError(
                Status.INVALID_ARGUMENT,
                "the call contains a table twice; send all ids of a table together",
                reason="repeated_table",
            )
        shapes = []
        for table, _ in asked:
            if table not in known:
                raise StatusError(
                    Status.NOT_FOUND,
                    f"table {table!r} is not served here; {format_suggestion(table, known)}",
                    reason="unknown_table",
                )
            shapes.append(known[table])
        if self.position.shards.num_shards > 1 or self.position.shard:
            try:
                self._check_partitions(asked)
            except StatusError:
                if self.read_map is None:
                    raise
                self.read_map()
                self._check_partitions(asked)
        return shapes

    def _check_partitions(self, asked: list[tuple[str, Ids]]) -> None:
        position = self.position
        shards, shard = position.shards, position.shard
        for table, ids in asked:
            owners = shards.shard_of(ids)
            foreign = np.flatnonzero(owners != shard)
            if len(foreign):
                first = ids[foreign[0]]
                own = "other partitions"
                if not shards.runs and shard < shards.num_shards:
                    begin, end = shards.partitions_of(shard)
                    own = f"the partitions {begin} to {end - 1}"
                raise StatusError(
                    Status.FAILED_PRECONDITION,
                    f"table {table!r}: key {int(first)} belongs to partition "
                    f"{int(partition(np.array([first]))[0])}, and shard {shard + 1} of "
                    f"{shards.num_shards} has {own}; use the attached shard map",
                    reason="foreign_partition",
                    shard_map=shards.to_bytes(),
                )


_Choice = TypeVar("_Choice", bound=IntEnum)


def _known(kind: type[_Choice], name: str, value: int) -> _Choice:
    """Returns the enum member for a number; raises `StatusError` if only newer releases define it."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f"{each.name} {each.value}" for each in kind)
        raise StatusError(
            Status.INVALID_ARGUMENT,
            f"{name} {value} is unknown to this server, {release()}, which supports {known}; the "
            "caller is newer: use a supported value, or upgrade the server",
        ) from None


def version_message(version: Any) -> VersionMessage:
    """Converts a `Version` to its message."""
    return VersionMessage(version.run, version.step, version.hash)


def parse_ids(content: Buffer) -> Ids:
    """Decodes ids; raises `StatusError` if the bytes are invalid."""
    try:
        return read_ids(content)
    except MessageError as error:
        raise StatusError(Status.INVALID_ARGUMENT, str(error), reason="message") from None


def decode_request(message: Any, content: Buffer) -> Any:
    """Decodes a message; raises `StatusError` if the bytes are invalid."""
    try:
        return decode(message, content)
    except MessageError as error:
        raise StatusError(Status.INVALID_ARGUMENT, str(error), reason="message") from None
