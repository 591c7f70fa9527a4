"""The folder in which a rank keeps the files of its store while it runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparring.errors import StorageIOError

__all__ = ["WorkingFolder"]


class WorkingFolder:
    """An empty folder. Files that a killed run has left in it are removed.

    Args:
        root: `data.join.path`; None: a temporary folder.
        rank: this rank.

    Raises:
        StorageIOError: the folder cannot be written, or another run uses it.
    """

    def __init__(self, root: str | None, rank: int) -> None:
        self._lock: int | None = None
        if root is None:
            self.path = Path(tempfile.mkdtemp(prefix="sparring-join-"))
            return
        self.path = Path(root, f"open-impressions-{rank}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir()
        except BlockingIOError as error:
            raise StorageIOError(
                f"data.join.path: another run uses {self.path}; end it, or choose another folder"
            ) from error
        except OSError as error:
            raise StorageIOError(
                f"data.join.path: {self.path} cannot be written: {error}; choose another folder"
            ) from error

    @contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Yields the path of a folder that does not exist yet, and removes it afterwards."""
        path = self.path / name
        shutil.rmtree(path, ignore_errors=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
