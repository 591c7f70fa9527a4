"""Options of caches before a backend that a trainer in another process writes to."""

from __future__ import annotations

from pydantic import Field

from sparring.contracts.options import Options, WholeNumber

__all__ = ["RefreshOptions"]


class RefreshOptions(Options):
    """How a reader follows the change notes of a trainer."""

    notes: str | None = Field(default=None, min_length=1)
    """The folder of the notes, a path or a URL of fsspec: `change_notes.url` of the trainer. None: they
    are with the rows of the last tier, where its backend keeps notes, as Redis does."""
    poll_seconds: float = Field(default=1.0, gt=0, le=3600, allow_inf_nan=False)
    """How often new notes are looked for. After a failure of the backend, keys that are not cached are
    refused for as long, without a trip."""
    batch_rows: WholeNumber = Field(default=16_384, ge=1, le=1 << 20)
    """Changed keys that are read again at a time."""
    drop_seconds: float = Field(default=60.0, ge=0, le=86_400, allow_inf_nan=False)
    """Where a note was missed, the rows that are cached then leave within this time, evenly; they may be
    as much older than the notes."""
