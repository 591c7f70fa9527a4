"""Options of the ``hkv`` storage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sparring.contracts import ByteCount, Options, WholeNumber

__all__ = ["MAX_ROWS", "HkvOptions", "Policy"]

MAX_ROWS = 2**32 - 1
"""Maximum number of rows of a storage, because rows are numbered with 32 bits."""

Policy = Literal["none", "lru", "lfu", "epoch_lru", "epoch_lfu", "custom"]


class HkvOptions(Options):
    """Options of the ``hkv`` storage: bounds, eviction policy and device.

    Without `capacity` and `memory_bytes` the table grows as long as there is memory, up to
    4,294,967,295 rows per rank. An upsert beyond that raises `CapacityError`.
    """

    capacity: WholeNumber | None = Field(default=None, ge=1)
    """Maximum number of rows, up to 4,294,967,295. If several bounds are set, the tightest applies."""
    memory_bytes: ByteCount | None = Field(default=None, ge=1)
    """Maximum memory in bytes, including the index. It is converted to rows when the table is opened."""
    policy: Policy = "none"
    """Eviction policy, which determines the row that a full table evicts. ``none``: no row; a full table
    rejects new rows. ``lru``: the row that was written or touched longest ago. ``lfu``: the row that was
    written or touched least often. ``epoch_lru``, ``epoch_lfu``: like ``lru`` and ``lfu``, but rows
    of older epochs are evicted first (see `HkvStorage.set_option`). ``custom``: the row with the lowest
    score set by the caller."""
    hash_seed: WholeNumber = Field(default=0, ge=0, le=2**64 - 1)
    """A secret number, for ids from people who might choose colliding ids on purpose. It determines which
    rows share a bucket, and therefore which rows are evicted."""

    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d{1,4})?|emulated)$")
    """Device on which the table is stored: ``cpu``; ``cuda`` or ``cuda:N`` for a GPU; ``emulated`` for
    the GPU kernels on the host, which are slow and intended for tests, if the package was built with
    them."""
    device_memory_bytes: ByteCount | None = Field(default=None, ge=1)
    """Maximum GPU memory of index and rows. Rows beyond it are stored in pinned host memory, which
    kernels access over the bus. None stores everything on the GPU."""

    @field_validator("capacity")
    @classmethod
    def _check_capacity(cls, capacity: int | None) -> int | None:
        if capacity is not None and capacity > MAX_ROWS:
            raise PydanticCustomError(
                "too_many_rows",
                "one table of hkv can contain at most {most} rows: distribute it over more ranks, or "
                "remove the capacity",
                {"most": MAX_ROWS},
            )
        return capacity

    @model_validator(mode="after")
    def _check_device_memory(self) -> HkvOptions:
        if self.device == "cpu" and self.device_memory_bytes is not None:
            raise PydanticCustomError(
                "no_device",
                "device_memory_bytes limits the memory of a GPU, but the device is cpu: use "
                "memory_bytes, or choose a device",
            )
        return self

    @property
    def device_kind(self) -> str:
        """``cpu``, ``cuda`` or ``emulated``."""
        return self.device.partition(":")[0]

    @property
    def device_number(self) -> int:
        """Number of the GPU; 0 by default."""
        return int(self.device.partition(":")[2] or 0)
