"""Jobs whose results are computed in independent parts, and the loop that computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow
from pyarrow import parquet

from sparring.errors import InvalidArgumentError
from sparring_train.recommend.part_files import PartFolder

__all__ = ["PartJob", "PartsResult", "compute_parts", "count_parts", "encode_part", "select_parts"]


class PartJob(Protocol):
    """A result that consists of parts with a fixed number of rows, such as users.

    A part is a pure function of its number and the plan: its bytes do not depend on the process that
    computes it, on other parts, or on the number of threads.
    """

    @property
    def num_rows(self) -> int:
        """Number of rows of all parts."""

    @property
    def part_rows(self) -> int:
        """Number of rows of each part except the last."""

    @property
    def plan(self) -> Mapping[str, Any]:
        """JSON values that determine the parts, such as the hash of the snapshot and k."""

    def compute(self, part: int) -> pyarrow.Table:
        """Computes the rows of a part."""


@dataclass(frozen=True, slots=True)
class PartsResult:
    """What `compute_parts` did."""

    num_computed: int
    num_kept: int
    """Number of parts that existed and were intact."""
    is_complete: bool
    """Whether all parts of the result exist, so that its manifest was written."""


def count_parts(job: PartJob) -> int:
    """Returns the number of parts of a job."""
    return -(-job.num_rows // job.part_rows)


def select_parts(num_parts: int, share: str | None) -> range:
    """Returns the parts that a worker computes.

    Args:
        num_parts: number of all parts.
        share: ``I/N`` for worker I of N, counted from 0, which computes the parts I, I + N, and so on;
            ``BEGIN:END`` for a range of parts; None for all parts.

    Raises:
        InvalidArgumentError: the share is invalid.

    Examples:
        >>> from sparring_train.recommend.part_jobs import select_parts
        >>> list(select_parts(5, "1/2")), list(select_parts(5, "2:9"))
        ([1, 3], [2, 3, 4])
    """
    if share is None:
        return range(num_parts)
    for separator in "/:":
        first, found, second = share.partition(separator)
        if found and first.isdecimal() and second.isdecimal():
            begin, end = int(first), int(second)
            if separator == ":" and begin <= end:
                return range(min(begin, num_parts), min(end, num_parts))
            if separator == "/" and begin < end:
                return range(begin, num_parts, end)
    raise InvalidArgumentError(
        f"--parts: found {share!r}, expected I/N with I < N for worker I of N, counted from 0, or "
        "BEGIN:END for a range of parts; correct it"
    )


def compute_parts(
    job: PartJob,
    output: PartFolder,
    parts: Iterable[int] | None = None,
    *,
    on_part: Callable[[int], None] | None = None,
) -> PartsResult:
    """Computes the parts that are missing or damaged, in order, and writes the manifest after the last.

    Any number of processes may compute parts of the same output at the same time.

    Args:
        job: the job.
        output: folder of the result.
        parts: numbers of the parts to compute; None for all.
        on_part: called with the number of rows of each part when the part exists.

    Raises:
        InvalidArgumentError: the folder contains parts of another result.
        StorageIOError: the file system failed.
    """
    output.begin(job.plan)
    num_parts = count_parts(job)
    existing, num_computed, num_kept = output.parts(), 0, 0
    for part in range(num_parts) if parts is None else parts:
        if not 0 <= part < num_parts:
            raise InvalidArgumentError(
                f"computing part {part} failed: expected a number from 0 to {num_parts - 1}; correct it"
            )
        if part in existing and output.is_intact(*existing[part]):
            num_kept += 1
        else:
            output.write_part(part, encode_part(job.compute(part)))
            num_computed += 1
        if on_part is not None:
            begin = part * job.part_rows
            on_part(min(job.part_rows, job.num_rows - begin))
    return PartsResult(num_computed, num_kept, output.write_manifest(num_parts))


def encode_part(rows: pyarrow.Table) -> memoryview:
    """Returns a Parquet file with the rows in one row group. Equal rows result in equal bytes.

    Args:
        rows: rows of a part.
    """
    sink = pyarrow.BufferOutputStream()
    # The schema of Arrow is not stored, because it contains no information beyond Parquet's types.
    parquet.write_table(
        rows.combine_chunks(),
        sink,
        row_group_size=max(1, len(rows)),
        compression="zstd",
        use_dictionary=False,
        write_statistics=True,
        store_schema=False,
    )
    return memoryview(sink.getvalue())
