"""sparring-sqlite: each table in one SQLite file. Small, persistent, easy to look into."""

from pathlib import Path

from sparring.descriptors import Options

__all__ = ["SqliteOptions"]


class SqliteOptions(Options):
    """What users may set on a `sqlite` storage."""

    folder: Path
    """Where the files are, ``<table>.sqlite`` each. Made if missing."""
