"""The options of the ``hkv`` storage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sparring.descriptors import Options, WholeNumber

__all__ = ["MOST_ROWS", "HkvOptions", "Policy"]

MOST_ROWS = 2**32 - 1
"""The most rows of one storage: they are numbered with 32 bits."""

Policy = Literal["none", "lru", "lfu", "epoch_lru", "epoch_lfu", "custom"]


class HkvOptions(Options):
    """How a table of ``hkv`` is bounded, and what leaves when it is full.

    Without `capacity` and `memory_bytes` the table grows as long as there is memory, and up to
    4,294,967,295 rows on each rank. An upsert beyond that raises `CapacityError`.
    """

    capacity: WholeNumber | None = Field(default=None, ge=1)
    """The most rows, up to 4,294,967,295. Of several bounds the tighter one holds."""
    memory_bytes: WholeNumber | None = Field(default=None, ge=1, le=2**64 - 1)
    """The most memory in bytes, index included; it is translated into rows on opening."""
    policy: Policy = "none"
    """What scores mean, and so who leaves a full table. ``none``: nobody, a full table refuses.
    ``lru``: the row that was written or touched longest ago. ``lfu``: the one written or touched
    least often. ``epoch_lru``, ``epoch_lfu``: the same, but rows of older epochs first (see
    `HkvStorage.set_option`). ``custom``: the one with the lowest score that the caller gave."""
    device: str = Field(default="cpu", pattern=r"^(cpu|emulated|cuda(:(0|[1-9][0-9]?))?)$")
    """Where index and rows lie: ``cpu``, ``cuda`` (the first GPU), ``cuda:1``, ... Tables on a GPU
    evict within buckets of 128 rows. ``emulated``: as on a GPU, in host memory, for tests."""
    device_memory_bytes: WholeNumber | None = Field(default=None, ge=1, le=2**64 - 1)
    """The most device memory for index and rows; rows beyond it lie in pinned host memory. None:
    all that there is. For tables on a GPU."""
    hash_seed: WholeNumber = Field(default=0, ge=0, le=2**64 - 1)
    """A secret number where ids come from people who might choose them so that they collide.
    Which rows share a bucket, and so what is evicted, depends on it."""

    @model_validator(mode="after")
    def _memory_of_a_device(self) -> HkvOptions:
        if self.device_memory_bytes is not None and self.device == "cpu":
            raise PydanticCustomError(
                "no_device",
                "device_memory_bytes is for tables on a GPU: say device: cuda, or leave it out",
            )
        return self

    @field_validator("capacity")
    @classmethod
    def _can_be_numbered(cls, capacity: int | None) -> int | None:
        if capacity is not None and capacity > MOST_ROWS:
            raise PydanticCustomError(
                "too_many_rows",
                "one table of hkv numbers its rows with 32 bits and holds {most} at the most: "
                "share it among more ranks, or leave the capacity out",
                {"most": MOST_ROWS},
            )
        return capacity
