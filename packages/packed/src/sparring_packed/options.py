"""Options of the ``packed`` storage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from sparring.contracts import Options

__all__ = ["PackedOptions"]


def _text(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


class PackedOptions(Options):
    """Selects the serving snapshot from which rows are read."""

    path: Annotated[str, BeforeValidator(_text)]
    """A serving snapshot, or a folder of serving snapshots, of which the newest is used: a path, or a URL
    of fsspec with `cache`. Each storage of a process maps the files separately, but they share memory
    pages."""
    cache: Path | None = None
    """A local folder for copies from another file system. Processes may share it."""
    verify: Literal["all", "open"] = "all"
    """``all`` hashes every byte before the first lookup. ``open`` checks only the manifest, sizes and
    headers, in a time that does not depend on the size."""
