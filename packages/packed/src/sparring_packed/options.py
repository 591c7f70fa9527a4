"""The options of the ``packed`` storage."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sparring.contracts import Options

__all__ = ["PackedOptions"]


class PackedOptions(Options):
    """Which serving snapshot rows are read from."""

    path: Path
    """A serving snapshot, or a folder of them, of which the newest is taken. Storages of one process
    that name the same path map its files once each; their pages are shared all the same."""
    verify: Literal["all", "open"] = "all"
    """``all``: every byte is hashed before the first answer. ``open``: manifest, sizes and headers
    alone, in a time that does not depend on the size."""
