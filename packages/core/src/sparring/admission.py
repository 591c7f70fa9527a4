"""Admission filters: which unseen ids earn a row.

Most ids of a recommender come once and never again. A filter keeps them from taking memory: an id
that has no row is asked about in each step that has a gradient for it, and as long as the answer is
no its gradient is dropped and counted, and it goes on reading its initial value. An id that has a
row is not asked about again.

What is counted is steps, not occurrences: the number is the same for any micro-batches and ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sparring import _native
from sparring.errors import InvalidArgumentError
from sparring.names import closest_name

if TYPE_CHECKING:
    import numpy.typing as npt

    from sparring.storage.contract import Keys
    from sparring.table import TableConfig

__all__ = [
    "ADMISSIONS",
    "Admission",
    "Bloom",
    "Frequency",
    "Probability",
    "admission_from",
    "admit_unseen",
    "make_filter",
]


@dataclass(frozen=True, slots=True)
class Admission:
    """The base of all admission filters. `kind` is the name in configs."""

    kind: ClassVar[str] = ""

    def as_dict(self) -> dict[str, Any]:
        """For configs and manifests: ``{"kind": …, parameter: value, …}``."""
        return {"kind": self.kind} | {f.name: getattr(self, f.name) for f in fields(self)}

    def make(self, seed: int) -> Any:
        """The native filter, with nothing counted."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Frequency(Admission):
    """Admits an id in the `k`-th step that trained on it, counting exactly.

    Args:
        k: steps, at least 1.
        memory_bytes: for the counters, 12 bytes an id. When they are full, counts are halved, and
            ids that came once are forgotten: an id may then be admitted later, never earlier.
    """

    k: int
    memory_bytes: int = 64 << 20
    kind: ClassVar[str] = "frequency"

    def __post_init__(self) -> None:
        _check_whole("frequency", "k", self.k, 1, 2**31)
        _check_whole("frequency", "memory_bytes", self.memory_bytes, 48, 2**50)

    def make(self, seed: int) -> Any:
        return _native.AdmissionFilter.frequency(self.k, self.memory_bytes)


@dataclass(frozen=True, slots=True)
class Probability(Admission):
    """Admits an id in each step that trained on it with probability `p`; remembers nothing.

    The answer is a function of the table's seed and name, the step and the id.
    """

    p: float
    kind: ClassVar[str] = "probability"

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise InvalidArgumentError(
                f"admission probability: p must lie from 0 to 1, found {self.p!r}"
            )

    def make(self, seed: int) -> Any:
        return _native.AdmissionFilter.probability(self.p, seed)


@dataclass(frozen=True, slots=True)
class Bloom(Admission):
    """Admits an id in the `k`-th step that trained on it, or earlier by mistake.

    A blocked counting Bloom filter (``native/kernels/bloom_filter.h``): some bytes for each
    expected id, whatever ids come.

    Args:
        k: steps, 1 to 255.
        false_positive_rate: the share of ids admitted too early once `expected_keys` distinct
            ones came; 0.001 or more.
        expected_keys: for which the filter is made: about 14 bytes each at a rate of 0.01, and 80
            at 0.001.
    """

    k: int
    false_positive_rate: float = 0.01
    expected_keys: int = 1_000_000
    kind: ClassVar[str] = "bloom"

    def __post_init__(self) -> None:
        _check_whole("bloom", "k", self.k, 1, 255)
        _check_whole("bloom", "expected_keys", self.expected_keys, 1, 2**40)
        if not 0.001 <= self.false_positive_rate < 1:
            raise InvalidArgumentError(
                "admission bloom: false_positive_rate must be at least 0.001 and below 1, found "
                f"{self.false_positive_rate!r}"
            )

    def make(self, seed: int) -> Any:
        return _native.AdmissionFilter.bloom(
            self.k, self.false_positive_rate, self.expected_keys, seed
        )


ADMISSIONS: dict[str, type[Admission]] = {
    kind.kind: kind for kind in (Frequency, Probability, Bloom)
}


def admission_from(value: Admission | dict[str, Any] | None) -> Admission | None:
    """A filter from itself or ``{"kind": name, parameter: value}``; None admits everything.

    Raises:
        InvalidArgumentError: unknown name or parameter, or a value out of range.
    """
    if value is None or isinstance(value, Admission):
        return value
    settings = dict(value)
    name = settings.pop("kind", None)
    kind = ADMISSIONS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidArgumentError(
            f"admission {name!r} is unknown; choose one of {', '.join(ADMISSIONS)}"
        )
    known = [f.name for f in fields(kind)]
    for given in settings:
        if given not in known:
            meant = closest_name(given, known)
            hint = f"did you mean {meant!r}? " if meant is not None else ""
            raise InvalidArgumentError(
                f"admission {name}: unknown parameter {given!r}; {hint}it takes {', '.join(known)}"
            )
    try:
        return kind(**settings)
    except TypeError as error:
        raise InvalidArgumentError(f"admission {name}: {error}") from error


def make_filter(table: TableConfig) -> Any | None:
    """The native filter of a table, with nothing counted; None where all ids are admitted."""
    if not isinstance(table.admission, Admission):
        return None
    return table.admission.make((_native.table_hash(table.name) ^ table.seed) % 2**64)


def admit_unseen(
    admission_filter: Any, keys: Keys, found: npt.NDArray[np.bool_], step: int
) -> npt.NDArray[np.bool_]:
    """Which keys may be updated: those that have a row, and those that are admitted now."""
    is_kept: npt.NDArray[np.bool_] = found.copy()
    is_kept[~found] = admission_filter.admit(keys[~found], step)
    return is_kept


def _check_whole(kind: str, name: str, value: object, low: int, high: int) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= int(value) <= high:  # type: ignore[call-overload]
        raise InvalidArgumentError(
            f"admission {kind}: {name} must be a whole number from {low} to {high}, found {value!r}"
        )
