"""sparring-sqlite: stores each table in one SQLite file."""

from pathlib import Path

from sparring.contracts import Options

__all__ = ["SqliteOptions"]


class SqliteOptions(Options):
    """Options of the storage backend `sqlite`."""

    folder: Path
    """Folder of the files ``<table>.sqlite``. It is created if it does not exist."""
