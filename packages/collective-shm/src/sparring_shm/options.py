"""Options of the collective ``shm``."""

from __future__ import annotations

from pydantic import Field, field_validator

from sparring.contracts import Options

__all__ = ["ShmOptions"]


class ShmOptions(Options):
    """Options of the collective ``shm``."""

    between_hosts: str = Field(
        "torch",
        description="The collective that connects the ranks at the start, and that sends messages "
        "between hosts, with its default options.",
    )
    ring_bytes: int = Field(
        1 << 18,
        ge=1 << 16,
        le=1 << 30,
        description="Shared memory for each pair of ranks and direction, a power of two. Larger messages "
        "pass through it in pieces.",
    )

    @field_validator("ring_bytes")
    @classmethod
    def _check_power(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(
                f"must be a power of two, found {value}; use {1 << value.bit_length()}"
            )
        return value
