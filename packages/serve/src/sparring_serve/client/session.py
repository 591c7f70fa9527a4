"""The logic of a client without a network: generators that yield attempts and receive their outcomes.

`LookupClient` and `AsyncLookupClient` execute the attempts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sparring.adapter import dedup, format_suggestion
from sparring.errors import InvalidArgumentError, SparringError, UnknownTableError
from sparring_serve.client.answer import LookupReply, find_declarations
from sparring_serve.client.arguments import (
    check_ids,
    check_seconds,
    check_table_mapping,
    check_text,
    check_whole_number,
)
from sparring_serve.client.epochs import ShardEpochs
from sparring_serve.client.fallback import Fallback
from sparring_serve.client.pull_calls import PullCalls, PullOptions, TableResult
from sparring_serve.client.replicas import ReplicaOrder
from sparring_serve.client.rounds import (
    AT_THE_LEADER,
    IMPATIENT,
    PATIENT,
    RetryPolicy,
    Rounds,
    ShardMapMovedError,
)
from sparring_serve.client.sample import Sample, encode_sample
from sparring_serve.client.splitting import CallLimits, TableKeys, split_keys
from sparring_serve.client.transport import Outcome, Pause, Send
from sparring_serve.config import ClientConfig
from sparring_serve.metrics import ServingMetrics
from sparring_serve.security import WatchedFile
from sparring_serve.tables.contract import VersionGoneError
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.fields import MessageError, decode, encode
from sparring_serve.wire.messages import (
    DescribeReply,
    Missing,
    RowDtype,
    ScanReply,
    ScanRequest,
)
from sparring_serve.wire.rows import read_ids, read_rows, row_bytes

__all__ = ["MAX_ATTEMPTS", "Description", "Session", "Steps"]

_Result = TypeVar("_Result")

Steps = Generator[list[Send] | Pause, Iterable[Outcome], _Result]
"""Yields attempts to make concurrently and receives their outcomes, or yields a pause. Returns a
result."""

MAX_ATTEMPTS = 3
"""Maximum number of times that a call starts because servers switched versions.
"""


_READ_MAP_SECONDS = 1.0
"""Interval in which a client checks whether its file has a newer shard map."""


@dataclass(frozen=True)
class Description:
    """Descriptions of the shards that replied."""

    shards: Mapping[int, DescribeReply]

    @cached_property
    def dims(self) -> dict[str, int]:
        """Table → dim."""
        return {each.name: each.dim for each in next(iter(self.shards.values())).tables}

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """Table → data type of its stored rows."""
        return {each.name: each.dtype for each in next(iter(self.shards.values())).tables}

    @cached_property
    def declarations(self) -> dict[str, dict[str, list[int]]]:
        return find_declarations(self.shards)

    def fastest_dtype(self, tables: Sequence[str]) -> RowDtype:
        """Returns the data type in which a pull from these tables is fastest over loopback.

        int8 rows of serving snapshots are sent as stored. Converting other rows to int8 takes longer
        than sending them as float32. Trainable tables and backends have no hash of a version.
        """
        has_snapshots = all(each.versions[0].hash for each in self.shards.values())
        is_stored = bool(tables) and all(self.dtypes[each] == "int8" for each in tables)
        return RowDtype.INT8 if has_snapshots and is_stored else RowDtype.FLOAT32

    @cached_property
    def max_ids(self) -> int:
        """Maximum number of ids per call that all servers accept."""
        return min(each.max_ids for each in self.shards.values())

    @cached_property
    def max_deadline_seconds(self) -> float:
        """Maximum deadline that all servers accept."""
        return min(each.max_deadline_seconds for each in self.shards.values())

    def common_version(self) -> str:
        """Returns the newest version that all shards have; empty if there is none."""
        kept = [[each.hash for each in answer.versions] for answer in self.shards.values()]
        common = [each for each in kept[0] if all(each in others for others in kept)]
        return common[0] if common else ""


@dataclass(frozen=True, slots=True)
class ScannedPart:
    """A chunk of a table of one shard."""

    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float32]
    """``(n, dim)``"""
    version: str
    """Hash of the version."""
    cursor: bytes
    """Start of the next chunk; empty after the last chunk of the shard."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    table: str
    keys: npt.NDArray[np.int64]
    inverse: npt.NDArray[np.int64] | None
    """Index of the row of each id; None if ids are distinct and rows have their order."""


class Session:
    """State that a client keeps about its servers. All methods are thread-safe.

    Args:
        shards: Initial shard map.
        config: Settings of the client.
        metrics: Receives the counters.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        shards: ShardReplicas,
        config: ClientConfig,
        metrics: ServingMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shards = shards
        self.config = config
        self.metrics = metrics
        self.clock = clock
        self.order = ReplicaOrder()
        self.epochs = ShardEpochs()
        self._fallback = Fallback(config, clock)
        self._lock = threading.Lock()
        self._description: Description | None = None
        self._last_description: Description | None = None
        self._pin = ""
        self.compared: dict[str, tuple[str, ...] | None] = {}  # see `compared_steps`
        self.read_newer: WatchedFile[ShardReplicas] | None = None
        """File with the shard map, which may change."""
        self._read_at = clock()

    def _read_map(self) -> None:
        """Uses the shard map of the file if it is newer."""
        if self.read_newer is None or self.clock() - self._read_at < _READ_MAP_SECONDS:
            return
        self._read_at = self.clock()
        newer = self.read_newer.value
        with self._lock:
            if newer.number > self.shards.number:
                self._use(newer)
                self._description, self._pin = None, ""

    def pull_steps(
        self,
        ids: Mapping[str, npt.ArrayLike],
        missing: Missing,
        version: str,
        deadline_seconds: float | None,
        *,
        sample: Sample | None = None,
    ) -> Steps[LookupReply]:
        """Looks up rows; see `LookupClient.pull`."""
        encoded = () if sample is None else encode_sample(sample)
        asked = check_table_mapping("ids", ids, "ids")
        wanted = [_distinct(table, each) for table, each in asked.items()]
        check_text("version", version)
        deadline = self.deadline(deadline_seconds)
        num_lost = 0
        while num_lost < MAX_ATTEMPTS:
            is_last = num_lost == MAX_ATTEMPTS - 1
            description = yield from self.description_steps(
                deadline, None if self._fallback.raises else self._last_description
            )
            shards = self.shards  # another thread may replace them
            pulled = self._split_pull(wanted, description, shards, missing, version)
            requests = pulled.requests("" if sample is None else sample.request_id, encoded)
            policy = self._policy
            if policy is PATIENT and self._has_leaders(description):
                policy = AT_THE_LEADER
            rounds = Rounds("Pull", requests, pulled.accept, policy)
            try:
                yield from self._run(rounds, shards, description, deadline)
            except ShardMapMovedError as moved:
                self.take_map(moved, shards.number)
                continue
            failures = rounds.failures()
            if failures and rounds.has_lost_version() and not is_last:
                # In the meantime, servers dropped the version that was selected, or renamed a table.
                num_lost += 1
                self.forget()
                continue
            self._end(failures, pulled, of_newest=not version)
            self.learn(pulled.newest)
            if not version:
                self._fallback.remember(pulled)
            return _answer(wanted, pulled)
        raise VersionGoneError(
            f"no version was served by all shards in {MAX_ATTEMPTS} attempts; increase "
            "server.keep_versions, or publish less often"
        )

    def scan_steps(
        self,
        table: str,
        shard: int,
        max_rows: int,
        position: tuple[str, bytes],
        deadline: float | None,
    ) -> Steps[ScannedPart]:
        """Reads a chunk of a table of one shard.

        Args:
            table: Name of the table.
            shard: Number of the shard, from 0.
            max_rows: Maximum number of rows in the chunk.
            position: The version and the cursor of the previous chunk. An empty version means the
                newest that all shards have, and an empty cursor means the first chunk.
            deadline: Deadline in seconds; None uses the deadline of the client.
        """
        check_text("table", table)
        check_whole_number("chunk_rows", max_rows)
        end = self.deadline(deadline)
        description = yield from self.description_steps(end)
        dims, (version, cursor) = description.dims, position
        if table not in dims:
            self.forget()
            raise UnknownTableError(
                f"table {table!r} is not served; {format_suggestion(table, dims)}", table=table
            )
        if not version and self.shards.num_shards > 1:
            version = self.common_version(description)
        request = encode(ScanRequest(table, version, max_rows, cursor))
        parts: list[ScannedPart] = []

        def accept(_: int, content: bytes) -> None:
            answer: ScanReply = decode(ScanReply, content)
            ids = read_ids(answer.ids)
            rows = np.empty((len(ids), dims[table]), np.float32)
            read_rows(answer.rows, dims[table], RowDtype.FLOAT32, rows)
            parts.append(ScannedPart(ids, rows, answer.version.hash, bytes(answer.cursor)))

        rounds = Rounds("Scan", [(shard, request)], accept)
        yield from self.run(rounds, end)
        if not parts:
            if rounds.has_lost_version():
                self.forget()
                raise VersionGoneError(
                    f"scan of table {table!r}: version {version} is no longer kept; start again, or "
                    "increase server.keep_versions"
                )
            raise rounds.failures()[0][1]
        return parts[0]

    def common_version(self, description: Description) -> str:
        """Returns the hash of the newest known version that all shards have; empty if there is none."""
        return self._pin or description.common_version()

    def run(self, rounds: Rounds, deadline: float) -> Steps[None]:
        """Makes the attempts of calls; see `Rounds.run`."""
        description = yield from self.description_steps(deadline)
        yield from self._run(rounds, self.shards, description, deadline)

    def _run(
        self, rounds: Rounds, shards: ShardReplicas, description: Description, deadline: float
    ) -> Steps[None]:
        longest = description.max_deadline_seconds
        try:
            yield from rounds.run(shards.shards, self.order, self.clock, deadline, longest)
        finally:
            for _ in range(rounds.num_failovers):
                self.metrics.count_failover()

    def describe_steps(self, deadline_seconds: float | None) -> Steps[Description]:
        """Requests new descriptions from all shards."""
        self.forget()
        return (yield from self.description_steps(self.deadline(deadline_seconds)))

    def description_steps(
        self, deadline: float, otherwise: Description | None = None
    ) -> Steps[Description]:
        self._read_map()
        with self._lock:
            known = self._description
        if known is not None:
            return known
        answers: dict[int, DescribeReply] = {}

        def accept(number: int, content: bytes) -> None:
            answer: DescribeReply = decode(DescribeReply, content)
            if not answer.versions or answer.max_ids < 1 or not answer.max_deadline_seconds > 0:
                raise MessageError(
                    "the description of the server has no version or no limits; client and server may be "
                    "of incompatible releases"
                )
            answers[number] = answer

        shards = self.shards
        calls = [(each, b"") for each in range(shards.num_shards)]
        rounds = Rounds("Describe", calls, accept, self._policy)
        # Use half of the time, so that a shard that does not reply leaves time for the others' rows.
        now = self.clock()
        yield from rounds.run(shards.shards, self.order, self.clock, now + (deadline - now) / 2)
        if not answers:
            # The previous description contains the tables, which is enough to fill in their rows.
            if otherwise is None:
                raise rounds.failures()[0][1]
            return otherwise
        for each in answers.values():
            self._fallback.learn(each.tables)
        # The shard map in a description may contain addresses of another network. Therefore, it is
        # used only when a server replies that it does not have the keys.
        description = Description(answers)
        with self._lock:
            self._description = self._last_description = description
            self._pin = description.common_version()
        return description

    def _split_pull(
        self,
        wanted: Sequence[_Wanted],
        description: Description,
        shards: ShardReplicas,
        missing: Missing,
        version: str,
    ) -> PullCalls:
        config, dims = self.config, description.dims
        unknown = [each.table for each in wanted if each.table not in dims]
        if unknown:
            self.forget()
            raise UnknownTableError(
                f"table {unknown[0]!r} is not served; {format_suggestion(unknown[0], dims)}",
                table=unknown[0],
            )
        if config.row_dtype == "auto":
            dtype = description.fastest_dtype([each.table for each in wanted])
        else:
            dtype = RowDtype[config.row_dtype.upper()]
        calls = split_keys(
            [
                TableKeys(each.table, each.keys, row_bytes(dims[each.table], dtype))
                for each in wanted
            ],
            shards,
            CallLimits(config.max_call_bytes, description.max_ids),
        )
        if not version and config.consistency == "one_version" and len(calls) > 1:
            version = self._pin or description.common_version()
            if not version:
                self.forget()
                raise VersionGoneError(
                    "there is no version that all shards keep; wait until they have refreshed, increase "
                    "server.keep_versions, or set client.consistency=newest"
                )
        tables = [
            TableResult.empty(each.table, len(each.keys), dims[each.table]) for each in wanted
        ]
        asked = PullOptions(
            dtype,
            missing,
            version,
            config.max_staleness_seconds,
            accepts_partial=not self._fallback.raises,
        )
        return PullCalls(calls, tables, asked, self.epochs)

    def _end(
        self, failures: Sequence[tuple[int, SparringError]], pulled: PullCalls, *, of_newest: bool
    ) -> None:
        if failures and self._fallback.raises:
            raise failures[0][1]
        missing = [(pulled.calls[number].parts, type(error).__name__) for number, error in failures]
        if pulled.left_out:
            missing.append((tuple(pulled.left_out), "backend"))
        for parts, reason in missing:
            filled = self._fallback.fill(pulled, parts, of_newest=of_newest)
            for status, count in filled.items():
                self.metrics.count_degraded(count, reason, status.name.lower())

    def learn(self, newest_of_shards: Mapping[int, str]) -> None:
        """Switches to a newer version when all shards have it."""
        newest = set(newest_of_shards.values())
        if len(newest) == 1 and len(newest_of_shards) == self.shards.num_shards:
            with self._lock:
                self._pin = newest.pop()

    def take_map(self, moved: ShardMapMovedError, number: int) -> None:
        """Uses the shard map that a server attached, unless another thread has a newer one.

        Args:
            moved: Rejection of a server.
            number: Version of the map that the call used.

        Raises:
            InvalidArgumentError: The server's map is not newer than the one of the call.
        """
        try:
            newer = ShardReplicas.from_bytes(moved.outcome.shard_map)
        except SparringError as error:
            raise InvalidArgumentError(
                f"{moved}; cannot read the attached shard map: {error}; client and server may be of "
                "incompatible releases"
            ) from None
        with self._lock:
            if newer.number <= number:
                raise InvalidArgumentError(
                    f"{moved.outcome.message}. The server has shard map {newer.number} of "
                    f"{newer.num_shards} shards, and this client has {number} of "
                    f"{self.shards.num_shards}; use the same `shards` on both sides, and increase "
                    "`map_number` with each change"
                )
            if newer.number > self.shards.number:
                self._use(newer)

    def _use(self, newer: ShardReplicas) -> None:
        """Uses a newer shard map. The caller has the lock."""
        if newer.shards != self.shards.shards:
            self._description = None
            self.epochs.clear()
        self.shards = newer

    def _has_leaders(self, description: Description) -> bool:
        """Returns whether only one replica of a shard answers, because the tables learn."""
        answer = next(iter(description.shards.values()))
        return bool(answer.parameters.tables) and any(len(each) > 1 for each in self.shards.shards)

    @property
    def _policy(self) -> RetryPolicy:
        # Callers that accept flagged rows prefer the rows of other shards soon.
        return PATIENT if self._fallback.raises else IMPATIENT

    def forget(self) -> None:
        """Discards the descriptions, so that the next call requests them again."""
        with self._lock:
            self._description, self._pin = None, ""

    def deadline(self, deadline_seconds: float | None) -> float:
        given = self.config.deadline_seconds if deadline_seconds is None else deadline_seconds
        return self.clock() + check_seconds(given, 600.0)


def _distinct(table: str, ids: npt.ArrayLike) -> _Wanted:
    array = check_ids(table, ids)
    if not array.size:
        return _Wanted(table, np.empty(0, np.int64), None)
    found = dedup(array)
    return _Wanted(table, found.keys, None if len(found.keys) == array.size else found.inverse)


def _answer(wanted: Sequence[_Wanted], pulled: PullCalls) -> LookupReply:
    def spread(of: str) -> dict[str, npt.NDArray[Any]]:
        return {
            each.table: values if each.inverse is None else values[each.inverse]
            for each, table in zip(wanted, pulled.tables, strict=True)
            if (values := getattr(table, of)) is not None
        }

    stale = spread("stale_seconds")
    ages = [*pulled.ages.values(), *(float(np.nanmax(each)) for each in stale.values())]
    return LookupReply(
        spread("rows"),
        spread("found"),
        spread("status"),
        tuple(sorted(pulled.ages, key=lambda each: (-pulled.ages[each], each.step))),
        max(ages, default=0.0),
        stale,
    )
