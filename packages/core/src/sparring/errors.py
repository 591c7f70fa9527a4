"""The errors that sparring raises, one subclass for each remedy.

Every message says what was asked, what was found and what to do. The details are
attributes too, so that a program need not parse the text.
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
    "PartialStepError",
    "PeerFailure",
    "PluginError",
    "ProgramError",
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotIOError",
    "SparringError",
    "StorageIOError",
    "UnknownTableError",
    "UnsupportedError",
    "VersionError",
]


class SparringError(Exception):
    """The base of all errors of sparring.

    Args:
        message: what was asked, what was found, what to do.
        **details: the same facts for a program; each becomes an attribute.
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
    """The call itself is wrong (shape, dtype, range): change the call."""


class UnknownTableError(InvalidArgumentError):
    """A table was named that is not declared: declare it, or mend the name."""


class UnsupportedError(SparringError):
    """The backend does not declare this capability: choose another backend."""


class ClosedError(SparringError):
    """The storage, container or pool was closed: open it again."""


class CapacityError(SparringError):
    """The storage is full and may not evict: raise its capacity or set a policy."""


class StorageIOError(SparringError, OSError):
    """Disk or network failed underneath a storage: look there, then retry."""


class DeadlineError(SparringError, TimeoutError):
    """Something took longer than its deadline: find out why, or allow more."""


class DeviceError(SparringError):
    """A GPU is missing, or refused a call: mend what is named."""


class DeviceLostError(DeviceError):
    """A GPU has failed and stays so: restart the process, and load a snapshot."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A GPU has no memory left: use smaller batches, or leave the table less.

    `asked_bytes` and `free_bytes` say how much was wanted and how much there was.
    """


class PartialStepError(SparringError):
    """A storage failed while a step was written, and other tables took it: restore a snapshot.

    `written`, `failed` and `untouched` name the tables; the cause is what the storage raised.
    """


class CorruptDataError(SparringError):
    """Stored data fails its own check: restore it from elsewhere."""


class SnapshotError(SparringError):
    """A snapshot cannot be written or read as asked: name another, or mend what is named."""


class InterruptedLoadError(SnapshotError):
    """A table holds a part of a snapshot, as its load was cut short: load again, or clear it."""


class SnapshotDamagedError(SnapshotError, CorruptDataError):
    """A file of a snapshot is missing or damaged: load an older snapshot.

    `file` names it; `offset` is where the damage was found, in bytes, to a block of 1 MiB.
    """


class SnapshotIOError(SnapshotError, StorageIOError):
    """Disk or network failed underneath a snapshot: look there, then save or load again."""


class ConfigError(SparringError, ValueError):
    """A configuration is wrong: mend the line that is named."""


class DataError(SparringError, ValueError):
    """An input file is missing or malformed: mend the row and column named."""


class PluginError(SparringError):
    """A plugin is missing, broken or not compatible: install or remove it."""


class VersionError(PluginError):
    """Two parts speak different versions of a contract: upgrade one of them."""


class ProgramError(SparringError, RuntimeError):
    """An exported program and its tables do not fit: bind those that it was exported for."""


class NonFiniteGradientError(SparringError, ArithmeticError):
    """A gradient holds NaN or infinity: lower the rate, clip, or choose `skip`."""


class PeerFailure(SparringError):  # noqa: N818 - a peer failed, not this rank
    """Another rank died, stopped or cannot be reached: restart from a snapshot."""


class InternalError(SparringError):
    """A bug, in sparring or in a backend: report it."""
