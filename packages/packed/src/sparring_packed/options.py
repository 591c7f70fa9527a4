"""The options of the ``packed`` storage."""

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
    """Which serving snapshot rows are read from."""

    path: Annotated[str, BeforeValidator(_text)]
    """A serving snapshot, or a folder of them, of which the newest is taken: a path, or a URL of
    fsspec, with `cache`. Storages of one process that name the same path map its files once each;
    their pages are shared all the same."""
    cache: Path | None = None
    """A local folder for copies of what is on another file system; processes may share it."""
    verify: Literal["all", "open"] = "all"
    """``all``: every byte is hashed before the first answer. ``open``: manifest, sizes and headers
    alone, in a time that does not depend on the size."""
