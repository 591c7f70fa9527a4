"""Verifies a whole snapshot and reports all problems."""

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
        snapshot: URL of the snapshot in the chain.
        file: Name of the file, or of the table or state that cannot be read.
        offset: Offset in bytes, with a resolution of 1 MiB.
        message: Complete message.
    """

    snapshot: str
    file: str
    offset: int
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of the verification of a snapshot.

    Args:
        num_snapshots: Number of snapshots in the chain.
        num_files: Number of files that were read, without manifests.
        num_bytes: Number of bytes that were read.
        num_rows: Table → number of rows, for tables that could be read.
        problems: The first 100 problems.
    """

    num_snapshots: int
    num_files: int
    num_bytes: int
    num_rows: dict[str, int]
    problems: tuple[SnapshotProblem, ...]

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify_snapshot(
    snapshot: Snapshot, *, on_bytes: Callable[[int], None] | None = None
) -> VerifyReport:
    """Reads all files of a snapshot and its chain: first their bytes, then their contents.

    Checks the hashes of files and blocks, headers, duplicate or misplaced keys, state, and files that
    the manifest does not list. All problems are reported and not raised, including unreadable files.

    Args:
        snapshot: Snapshot to verify.
        on_bytes: Receives the size of each file after its bytes are checked.
    """
    problems: list[SnapshotProblem] = []
    num_files = num_bytes = 0
    for each in snapshot.chain:
        for entry in each.files():
            _note(problems, each.url, entry.name, partial(each.check_file, entry))
            num_files, num_bytes = num_files + 1, num_bytes + entry.size_bytes
            if on_bytes is not None:
                on_bytes(entry.size_bytes)
        _note(problems, each.url, "the folder", partial(_note_unlisted, problems, each))
    num_rows: dict[str, int] = {}
    for table in snapshot.tables:
        # If the bytes are wrong, the contents are not checked.
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
                f"snapshot {snapshot.url}: found {name!r}, which manifest.json does not list and nothing "
                "reads; remove it",
            )
        )


def _count(snapshot: Snapshot, table: str, num_rows: dict[str, int]) -> None:
    num_rows[table] = sum(map(len, scan_rows(snapshot, table)))
