"""Verification of a whole snapshot, which reports all problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sparring import Snapshot, scan_rows
from sparring.errors import SnapshotError

__all__ = ["SnapshotProblem", "VerifyReport", "verify_snapshot"]

_MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class SnapshotProblem:
    """One problem of a snapshot.

    Args:
        snapshot: its URL; one of the chain.
        file: its name, or the table or state that cannot be read.
        offset: in bytes, to a block of 1 MiB.
        message: the whole text, for people.
    """

    snapshot: str
    file: str
    offset: int
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of verifying a snapshot.

    Args:
        num_snapshots: of the chain.
        num_files: that were read, manifests left out.
        num_bytes: that were read.
        num_rows: table → rows, of tables that could be read.
        problems: the first 100.
    """

    num_snapshots: int
    num_files: int
    num_bytes: int
    num_rows: dict[str, int]
    problems: tuple[SnapshotProblem, ...]

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify_snapshot(snapshot: Snapshot) -> VerifyReport:
    """Reads all files of a snapshot and of its chain: bytes first, then their contents.

    Checks hashes of files and blocks, headers, keys given twice or in the wrong file, state, and files
    that the manifest does not list. All problems are reported, not raised; a file that cannot be read
    included.
    """
    problems: list[SnapshotProblem] = []
    num_files = num_bytes = 0
    for each in snapshot.chain:
        for entry in each.files():
            _note(problems, each.url, entry.name, partial(each.check_file, entry))
            num_files, num_bytes = num_files + 1, num_bytes + entry.size_bytes
        _note(problems, each.url, "the folder", partial(_note_unlisted, problems, each))
    num_rows: dict[str, int] = {}
    for table in snapshot.tables:
        # Wrong bytes have been reported; their contents are then of no interest.
        if not problems:
            count = partial(_count, snapshot, table, num_rows)
            _note(problems, snapshot.url, f"table {table!r}", count)
    for rank in range(snapshot.world_size):
        for name in snapshot.state_names(rank):
            if not problems:
                read = partial(snapshot.state, name, rank)
                _note(problems, snapshot.url, f"state {name!r}", read)
    return VerifyReport(
        len(snapshot.chain), num_files, num_bytes, num_rows, tuple(problems[:_MAX_PROBLEMS])
    )


def _note(
    problems: list[SnapshotProblem], url: str, file: str, check: Callable[[], object]
) -> None:
    try:
        check()
    except SnapshotError as error:
        details = error.details
        problems.append(
            SnapshotProblem(
                str(details.get("url", url)),
                str(details.get("file", file)),
                int(str(details.get("offset", 0))),
                str(error),
            )
        )


def _note_unlisted(problems: list[SnapshotProblem], snapshot: Snapshot) -> None:
    for name in snapshot.unlisted_files():
        problems.append(
            SnapshotProblem(
                snapshot.url,
                name,
                0,
                f"snapshot {snapshot.url}: {name!r} is there, but manifest.json does not list it; "
                "nothing reads it. Remove it",
            )
        )


def _count(snapshot: Snapshot, table: str, num_rows: dict[str, int]) -> None:
    num_rows[table] = sum(map(len, scan_rows(snapshot, table)))
