"""Readers and writers of the files of a snapshot; ``docs/format/snapshot.md`` describes the format."""
