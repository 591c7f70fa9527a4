"""The options of the ``hkv`` storage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sparring.contracts import ByteCount, Options, WholeNumber

__all__ = ["MAX_ROWS", "HkvOptions", "Policy"]

MAX_ROWS = 2**32 - 1
"""The most rows of one storage: they are numbered with 32 bits."""

Policy = Literal["none", "lru", "lfu", "epoch_lru", "epoch_lfu", "custom"]


class HkvOptions(Options):
    """How a table of ``hkv`` is bounded, and what leaves when it is full.

    Without `capacity` and `memory_bytes` the table grows as long as there is memory, and up to
    4,294,967,295 rows on each rank. An upsert beyond that raises `CapacityError`.
    """

    capacity: WholeNumber | None = Field(default=None, ge=1)
    """The most rows, up to 4,294,967,295. Of several bounds the tighter one holds."""
    memory_bytes: ByteCount | None = Field(default=None, ge=1)
    """The most memory in bytes, index included; it is translated into rows on opening."""
    policy: Policy = "none"
    """Eviction policy: which row a full table evicts. ``none``: no row, a full table refuses new
    rows. ``lru``: the row that was written or touched longest ago. ``lfu``: the one written or
    touched least often. ``epoch_lru``, ``epoch_lfu``: the same, but rows of older epochs first
    (see `HkvStorage.set_option`). ``custom``: the one with the lowest score given by the caller."""
    hash_seed: WholeNumber = Field(default=0, ge=0, le=2**64 - 1)
    """A secret number where ids come from people who might choose them so that they collide.
    Which rows share a bucket, and so what is evicted, depends on it."""

    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d{1,4})?|emulated)$")
    """Where the table is stored: ``cpu``; ``cuda`` or ``cuda:N``, a GPU; ``emulated``, the GPU's
    kernels run on the host, slowly, for tests, where the package was built with them."""
    device_memory_bytes: ByteCount | None = Field(default=None, ge=1)
    """The most GPU memory that index and rows take; rows beyond it are stored in pinned host
    memory, which kernels reach over the bus. None: all of them are stored on the GPU."""

    @field_validator("capacity")
    @classmethod
    def _check_capacity(cls, capacity: int | None) -> int | None:
        if capacity is not None and capacity > MAX_ROWS:
            raise PydanticCustomError(
                "too_many_rows",
                "one table of hkv numbers its rows with 32 bits and holds {most} at the most: "
                "share it among more ranks, or leave the capacity out",
                {"most": MAX_ROWS},
            )
        return capacity

    @model_validator(mode="after")
    def _check_device_memory(self) -> HkvOptions:
        if self.device == "cpu" and self.device_memory_bytes is not None:
            raise PydanticCustomError(
                "no_device",
                "device_memory_bytes bounds the memory of a GPU, and the device is cpu: use "
                "memory_bytes, or choose a device",
            )
        return self

    @property
    def device_kind(self) -> str:
        """``cpu``, ``cuda`` or ``emulated``."""
        return self.device.partition(":")[0]

    @property
    def device_number(self) -> int:
        """Of several GPUs which; 0 where none was named."""
        return int(self.device.partition(":")[2] or 0)
