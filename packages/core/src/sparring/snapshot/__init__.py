"""Snapshots: immutable, step-stamped, consistent over all tables and ranks.

``docs/format/snapshot.md`` is the format. `SnapshotWriter` writes one rank's part, `open_snapshot`
reads, whatever world size, backend or framework wrote.
"""

from sparring.snapshot.compaction import compact
from sparring.snapshot.description import JSON, TableDescription
from sparring.snapshot.listing import latest_snapshot, list_snapshots, retain
from sparring.snapshot.options import SnapshotOptions
from sparring.snapshot.reading import Snapshot, open_snapshot
from sparring.snapshot.state_file import SnapshotState
from sparring.snapshot.verifying import VerifyReport
from sparring.snapshot.writing import SnapshotWriter

__all__ = [
    "JSON",
    "Snapshot",
    "SnapshotOptions",
    "SnapshotState",
    "SnapshotWriter",
    "TableDescription",
    "VerifyReport",
    "compact",
    "latest_snapshot",
    "list_snapshots",
    "open_snapshot",
    "retain",
]
