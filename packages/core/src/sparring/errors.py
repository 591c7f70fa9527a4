"""The errors that sparring raises, one subclass per remedy.

Every message names the operation, the value found, the value expected and the fix. The details are
also attributes, so programs do not need to parse the message.
"""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "ClosedError",
    "ConfigError",
    "CorruptDataError",
    "DataError",
    "DeadlineError",
    "DeviceError",
    "DeviceLostError",
    "DeviceMemoryError",
    "InternalError",
    "InvalidArgumentError",
    "InterruptedLoadError",
    "NonFiniteGradientError",
    "NotFoundError",
    "PartialStepError",
    "PeerFailure",
    "PluginError",
    "ProgramError",
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotIOError",
    "SnapshotNotFoundError",
    "SparringError",
    "StorageIOError",
    "UnknownTableError",
    "UnsupportedError",
    "VersionError",
]


class SparringError(Exception):
    """Base class of all errors that sparring raises.

    Args:
        message: the operation, the value found, the value expected and the fix.
        **details: the same facts as values; each becomes an attribute of the error.

    Examples:
        >>> from sparring import SparringError, TableConfig
        >>> try:
        ...     TableConfig("item", dim=0)
        ... except SparringError as error:
        ...     error.table
        'item'
    """

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details

    def __getattr__(self, name: str) -> object:
        # Only reached for names that are not ordinary attributes.
        details = self.__dict__.get("details", {})
        if name in details:
            return details[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class InvalidArgumentError(SparringError, ValueError):
    """An argument has a wrong shape, dtype or value: change the call."""


class NotFoundError(SparringError):
    """A snapshot, a table or a key does not exist: correct its name."""


class UnknownTableError(InvalidArgumentError, NotFoundError):
    """No table of this name is declared: declare it, or correct the name."""


class UnsupportedError(SparringError):
    """The backend does not support this feature: choose another backend."""


class ClosedError(SparringError):
    """The storage, container or pool was closed: open it again."""


class CapacityError(SparringError):
    """The storage is full and does not evict: raise its capacity or set an eviction policy."""


class StorageIOError(SparringError, OSError):
    """The disk or network of a storage failed: check it, then retry."""


class DeadlineError(SparringError, TimeoutError):
    """An operation exceeded its deadline: find the cause, or set a longer deadline."""


class DeviceError(SparringError):
    """A GPU is missing, or a call to it failed: fix the cause that the message names."""


class DeviceLostError(DeviceError):
    """A GPU failed permanently: restart the process, and load a snapshot."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a GPU is exhausted: use smaller batches, or a smaller table.

    `asked_bytes` and `free_bytes` are the requested and the available bytes.
    """


class PartialStepError(SparringError):
    """A storage failed during a step that other tables have applied: load a snapshot.

    `written`, `failed` and `untouched` name the tables; the cause is the error of the storage.
    """


class CorruptDataError(SparringError):
    """Stored data does not match its checksum or format: restore it from a copy."""


class SnapshotError(SparringError):
    """A snapshot cannot be written or read: use another one, or fix the cause in the message."""


class SnapshotNotFoundError(SnapshotError, NotFoundError):
    """There is no snapshot at this URL: correct the URL, or list the existing ones."""


class InterruptedLoadError(SnapshotError):
    """A load was interrupted, so the table contains part of a snapshot: load again, or clear it."""


class SnapshotDamagedError(SnapshotError, CorruptDataError):
    """A file of a snapshot is missing or damaged: load an older snapshot.

    `file` is its name; `offset` is the position of the damage in bytes, to within 1 MiB.
    """


class SnapshotIOError(SnapshotError, StorageIOError):
    """The disk or network of a snapshot failed: check it, then save or load again."""


class ConfigError(SparringError, ValueError):
    """A configuration is invalid: correct the line that the message names."""


class DataError(SparringError, ValueError):
    """An input file is missing or malformed: correct the row and column in the message."""


class PluginError(SparringError):
    """A plugin is missing, broken or incompatible: install, upgrade or remove it."""


class VersionError(PluginError):
    """Two packages use incompatible versions of a contract: upgrade one of them."""


class ProgramError(SparringError, RuntimeError):
    """An exported program does not match its tables: bind the tables it was exported with."""


class NonFiniteGradientError(SparringError, ArithmeticError):
    """A gradient contains NaN or infinity: lower the learning rate, clip, or choose `skip`."""


class PeerFailure(SparringError):  # noqa: N818 - a peer failed, not this rank
    """Another rank failed, stopped or is unreachable: restart from a snapshot."""


class InternalError(SparringError):
    """A bug in sparring or in a backend: report it."""
