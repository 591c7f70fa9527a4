"""Makes one full snapshot of a chain of deltas."""

from __future__ import annotations

import os
import secrets

from sparring.snapshot.chain import merged_chunks
from sparring.snapshot.reader import Snapshot, open_snapshot
from sparring.snapshot.row_router import SnapshotOptions
from sparring.snapshot.writer import SnapshotWriter

__all__ = ["compact"]


def compact(
    url: str | os.PathLike[str],
    into_url: str | os.PathLike[str],
    *,
    options: SnapshotOptions | None = None,
) -> Snapshot:
    """Writes the rows that a chain amounts to, and its newest state, as one full snapshot.

    The step, the world size and each rank's state are kept. The chain is not changed.

    Args:
        url: of the newest snapshot of the chain.
        into_url: of the snapshot to write.
        options: how its files are cut.

    Returns:
        The full snapshot.

    Raises:
        SnapshotError: the target exists already, or the chain cannot be read.
        SnapshotDamagedError: a file of the chain is damaged; nothing is committed.
        SnapshotIOError: the file system failed; nothing is committed.
    """
    source = open_snapshot(url)
    token = secrets.token_hex(8)
    writers: list[SnapshotWriter] = []
    try:
        for rank in range(source.world_size):
            writer = SnapshotWriter(
                os.fspath(into_url),
                step=source.step,
                rank=rank,
                world_size=source.world_size,
                token=token,
                options=options,
            )
            writers.append(writer)
        for name, table in source.tables.items():
            writers[0].write_table(table, merged_chunks(source, name))
        for writer in writers:
            for name in source.state_names(writer.rank):
                state = source.state(name, writer.rank)
                writer.write_state(name, state.values, state.arrays)
            writer.finish()
        return writers[0].commit()
    finally:
        # Of rank 0 after a commit: nothing. The others free what they hold.
        for writer in writers:
            writer.abandon()
