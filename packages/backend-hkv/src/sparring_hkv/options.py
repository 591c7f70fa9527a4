"""The options of the ``hkv`` storage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparring.descriptors import Options

__all__ = ["HkvOptions", "Policy"]

Policy = Literal["none", "lru", "lfu", "epoch_lru", "epoch_lfu", "custom"]


class HkvOptions(Options):
    """How a table of ``hkv`` is bounded, and what leaves when it is full.

    Without `capacity` and `memory_bytes` the table grows as long as there is memory.
    """

    capacity: int | None = Field(default=None, ge=1, le=2**63 - 1)
    """The most rows. Of several bounds the tighter one holds."""
    memory_bytes: int | None = Field(default=None, ge=1, le=2**64 - 1)
    """The most memory in bytes, index included; it is translated into rows on opening."""
    policy: Policy = "none"
    """What scores mean, and so who leaves a full table. ``none``: nobody, a full table refuses.
    ``lru``: the row that was written or touched longest ago. ``lfu``: the one written or touched
    least often. ``epoch_lru``, ``epoch_lfu``: the same, but rows of older epochs first (see
    `HkvStorage.set_option`). ``custom``: the one with the lowest score that the caller gave."""
    hash_seed: int = Field(default=0, ge=0, le=2**64 - 1)
    """A secret number where ids come from people who might choose them so that they collide.
    Which rows share a bucket, and so what is evicted, depends on it."""
