"""The files of a snapshot, as ``docs/format/snapshot.md`` describes them."""
