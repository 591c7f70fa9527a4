"""Collects the rows of a lookup from the replies of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring_serve.client.answer import ReplyVersion, RowStatus
from sparring_serve.client.epochs import ShardEpochs
from sparring_serve.client.splitting import Part, ShardCall
from sparring_serve.wire.fields import MessageError, decode, encode
from sparring_serve.wire.messages import (
    Missing,
    PullReply,
    PullRequest,
    RowDtype,
    SampleColumn,
    TableIds,
    TableRows,
)
from sparring_serve.wire.rows import as_bytes, read_found, read_rows, view_rows

__all__ = ["PullOptions", "PullCalls", "TableResult"]


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Options of a lookup, the same for all of its calls."""

    row_dtype: RowDtype
    missing: Missing
    version: str = ""
    max_staleness_seconds: float = 0.0
    accepts_partial: bool = False
    """Whether a server may omit rows that it cannot read."""


@dataclass(slots=True)
class TableResult:
    """Rows of the distinct keys of a table, filled in as replies arrive."""

    name: str
    rows: npt.NDArray[np.float32]
    found: npt.NDArray[np.bool_]
    status: npt.NDArray[np.uint8]
    stale_seconds: npt.NDArray[np.float64] | None = None

    @classmethod
    def empty(cls, name: str, count: int, dim: int) -> TableResult:
        rows = np.empty((count, dim), np.float32)
        failed = np.full(count, RowStatus.FAILED, np.uint8)
        return cls(name, rows, np.zeros(count, np.bool_), failed)


class PullCalls:
    """Requests and replies of the calls of a lookup.

    Args:
        calls: Calls that the lookup was split into.
        tables: Receive the rows.
        asked: Options of the lookup.
        epochs: Epochs of the leaders of shards.
    """

    def __init__(
        self,
        calls: Sequence[ShardCall],
        tables: Sequence[TableResult],
        asked: PullOptions,
        epochs: ShardEpochs,
    ) -> None:
        self.calls = calls
        self.tables = tables
        self._asked, self._epochs = asked, epochs
        self.ages: dict[ReplyVersion, float] = {}
        """For each version of the rows, its age in seconds."""
        self.call_ages: dict[int, float] = {}
        """Number of each successful call → age of its version."""
        self.newest: dict[int, str] = {}
        """Shard → hash of the newest version of the replica that replied."""
        self.left_out: list[Part] = []
        """Keys of successful calls whose rows the server could not read."""

    def requests(
        self, request_id: str = "", sample: tuple[SampleColumn, ...] = ()
    ) -> list[tuple[int, bytes]]:
        """Returns the shard and the request of each call.

        Args:
            request_id: Id of the lookup in the logs of servers.
            sample: Columns for the log, which only the first call contains.
        """
        asked = self._asked
        return [
            (
                call.shard,
                encode(
                    PullRequest(
                        tuple(
                            TableIds(self.tables[each.number].name, as_bytes(each.keys))
                            for each in call.parts
                        ),
                        asked.row_dtype,
                        asked.missing,
                        asked.version,
                        asked.max_staleness_seconds,
                        asked.accepts_partial,
                        request_id,
                        () if number else sample,
                        self._epochs.of(call.shard),
                    )
                ),
            )
            for number, call in enumerate(self.calls)
        ]

    def accept(self, number: int, content: bytes) -> None:
        """Copies the rows of one reply into the result.

        Raises:
            MessageError: The message is not a valid reply to this call.
            InvalidArgumentError: The dim of a table has changed.
        """
        call, answer = self.calls[number], decode(PullReply, content)
        names = [self.tables[part.number].name for part in call.parts]
        if [each.table for each in answer.tables] != names:
            raise MessageError(
                f"the reply contains the tables {', '.join(each.table for each in answer.tables)}, but "
                f"{', '.join(names)} were requested; client and server may be of incompatible releases"
            )
        self._epochs.take(call.shard, answer.epoch)
        for part, each in zip(call.parts, answer.tables, strict=True):
            self._place(part, each)
        found = answer.version
        version = ReplyVersion(found.run, found.step, found.hash)
        self.ages[version] = max(answer.age_seconds, self.ages.get(version, 0.0))
        self.call_ages[number] = answer.age_seconds
        self.newest[call.shard] = answer.newest

    def _place(self, part: Part, given: TableRows) -> None:
        table = self.tables[part.number]
        dim, count = table.rows.shape[1], len(part.keys)
        if given.dim != dim:
            raise InvalidArgumentError(
                f"table {table.name!r} has dim {given.dim} now, and had {dim} when this client first "
                "read it; create a new client for a model of the same dim",
                table=table.name,
            )
        found = read_found(given.found, count)
        is_sparse = self._asked.missing == Missing.ONLY_FOUND
        # Decode directly into the result, so that rows are copied once.
        if self._asked.row_dtype == RowDtype.FLOAT32 and not is_sparse:
            table.rows[part.positions] = view_rows(given.rows, count, dim)
        elif isinstance(part.positions, slice) and not is_sparse:
            read_rows(given.rows, dim, self._asked.row_dtype, table.rows[part.positions])
        else:
            rows = np.empty((int(found.sum()) if is_sparse else count, dim), np.float32)
            read_rows(given.rows, dim, self._asked.row_dtype, rows)
            if is_sparse:
                whole = np.zeros((count, dim), np.float32)
                whole[found] = rows
                rows = whole
            table.rows[part.positions] = rows
        table.found[part.positions] = found
        # RowStatus.FRESH is 0, and ABSENT is 1.
        table.status[part.positions] = ~found
        if given.failed:
            failed = read_found(given.failed, count)
            positions = np.arange(len(table.rows))[part.positions][failed]
            table.status[positions] = RowStatus.FAILED
            self.left_out.append(Part(part.number, part.keys[failed], positions))
