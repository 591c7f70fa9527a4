"""What an exchange of arrays on a device is asked for, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass

from sparring.kernel_set import DeviceArray
from sparring.storage.contract import Storage
from sparring.table import TableConfig

__all__ = ["DevicePullRequest", "DevicePulled", "DevicePushRequest", "DevicePushed"]


@dataclass(frozen=True, slots=True)
class DevicePullRequest:
    """Embeddings of one table that are wanted.

    Args:
        storage: this rank's shard, which takes arrays of the device; None where it holds no rows
            yet.
        table: name, dtype and dim.
        keys: ``(u,)`` int64 on the device, unique.
        num_columns: how many columns of each row, from the first; None: the embedding.
    """

    storage: Storage | None
    table: TableConfig
    keys: DeviceArray
    num_columns: int | None = None

    @property
    def width(self) -> int:
        """Columns of each row that travel."""
        return self.table.dim if self.num_columns is None else self.num_columns


@dataclass(frozen=True, slots=True)
class DevicePulled:
    """What the owners had, in the order of the keys asked for."""

    rows: DeviceArray
    """``(u, width)`` of the table's dtype; zeros where `found` is 0."""
    found: DeviceArray
    """``(u,)`` uint8, 1 or 0."""


@dataclass(frozen=True, slots=True)
class DevicePushRequest:
    """Gradients of one table that go to their owners.

    Args:
        table: name, dtype and dim.
        keys: ``(u,)`` int64 on the device, unique on this rank.
        gradients: ``(u, dim)`` of the table's computing dtype, on the device.
    """

    table: TableConfig
    keys: DeviceArray
    gradients: DeviceArray


@dataclass(frozen=True, slots=True)
class DevicePushed:
    """The gradients that all ranks pushed to this one, added up by key, on the device."""

    keys: DeviceArray
    """``(u,)`` int64"""
    gradients: DeviceArray
    """``(u, dim)``"""
    error: BaseException | None = None
    """Why this rank cannot apply the step: it found out when it was too late to say so."""
