"""Snapshots: immutable, step-stamped, consistent over all tables and ranks.

``docs/format/snapshot.md`` describes the format. `SnapshotWriter` writes one rank's part of a snapshot.
`open_snapshot` reads snapshots of any world size, backend and framework.
"""
