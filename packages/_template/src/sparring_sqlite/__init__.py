"""sparring-sqlite: each table in one SQLite file. Small, persistent, easy to look into."""

from pathlib import Path

from sparring.contracts import Options

__all__ = ["SqliteOptions"]


class SqliteOptions(Options):
    """Options of a `sqlite` storage."""

    folder: Path
    """Where the files are, ``<table>.sqlite`` each. Made if missing."""
