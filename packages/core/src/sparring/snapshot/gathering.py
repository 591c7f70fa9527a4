"""Gathers the parts of all ranks, and makes one manifest of them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sparring.errors import DeadlineError, SnapshotError
from sparring.snapshot.limits import MANIFEST_BYTES
from sparring.snapshot.manifest import Base, Manifest, Part, TableEntry, decode_text
from sparring.snapshot.outcome import Outcome
from sparring.snapshot.places import WriteFolder
from sparring.snapshot.reporting import writing

__all__ = ["Attempt", "await_parts", "merged", "part_name"]

_SHORTEST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.01, 0.1


@dataclass(frozen=True, slots=True)
class Attempt:
    """What all parts of one attempt to save have in common."""

    url: str
    token: str
    step: int
    world_size: int
    base: Base | None


def part_name(rank: int) -> str:
    """The file of a rank's part in the staging folder."""
    return f"part-{rank:05d}.json"


def await_parts(
    attempt: Attempt, folder: WriteFolder, outcome: Outcome, deadline_seconds: float
) -> list[Part]:
    """The parts of all ranks, in their order.

    Raises:
        DeadlineError: one did not come in time.
        SnapshotError: a rank has failed, or a part is of another attempt.
        SnapshotIOError: the file system failed.
    """
    end = time.monotonic() + deadline_seconds
    every = range(attempt.world_size)
    parts: dict[int, Part] = {}
    poll_seconds = _SHORTEST_POLL_SECONDS
    while True:
        outcome.check()
        for rank in every:
            part = parts.get(rank) or _read_part(attempt, folder, rank)
            if part is not None:
                parts[rank] = part
        missing = [rank for rank in every if rank not in parts]
        if not missing:
            return [parts[rank] for rank in every]
        if folder.is_gone():
            raise SnapshotError(
                f"snapshot {attempt.url}: another rank failed and removed what was staged, before "
                f"the parts of ranks {missing} had come; nothing was committed. Their errors tell "
                "why",
                url=attempt.url,
                ranks=tuple(missing),
            )
        if time.monotonic() > end:
            raise DeadlineError(
                f"snapshot {attempt.url}: the parts of ranks {missing} did not come within "
                f"{deadline_seconds} s; nothing was committed. See why they failed, or allow more "
                "time",
                ranks=tuple(missing),
            )
        time.sleep(poll_seconds)
        poll_seconds = min(2 * poll_seconds, _LONGEST_POLL_SECONDS)


def _read_part(attempt: Attempt, folder: WriteFolder, rank: int) -> Part | None:
    name = part_name(rank)
    with writing(attempt.url, name):
        try:
            text = folder.read(name, MANIFEST_BYTES)
            part = None if text is None else decode_text(text, Part)[0]
        except ValueError as error:
            raise SnapshotError(
                f"snapshot {attempt.url}: {name} cannot be read: {error}; nothing was committed",
                file=name,
            ) from error
    if part is None:
        return None
    found = (part.token, part.rank, part.step, part.world_size, part.base)
    asked = (attempt.token, rank, attempt.step, attempt.world_size, attempt.base)
    if found != asked:
        raise SnapshotError(
            f"snapshot {attempt.url}: {name} is of (token, rank, step, world_size, base) {found}, "
            f"expected {asked}; ranks of one attempt must give the same"
        )
    return part


def merged(attempt: Attempt, parts: list[Part]) -> Manifest:
    """One manifest of all parts.

    Raises:
        SnapshotError: ranks describe a table differently.
    """
    tables: dict[str, TableEntry] = {}
    for part in parts:
        for table in part.tables:
            known = tables.setdefault(table.name, table)
            if known != table:
                raise SnapshotError(
                    f"snapshot {attempt.url}: rank {part.rank} describes table {table.name!r} as "
                    f"{table.description}, another rank as {known.description}; nothing was "
                    "committed"
                )
    return Manifest(
        step=attempt.step,
        world_size=attempt.world_size,
        base=attempt.base,
        tables=list(tables.values()),
        files=[file for part in parts for file in part.files],
    )
