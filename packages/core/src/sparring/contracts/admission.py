"""Admission filters: which unseen ids earn a row.

Most ids of a recommender come once and never again. A filter keeps them from taking memory: an id
that has no row is asked about in each step that has a gradient for it, and as long as the answer is
no its gradient is dropped and counted, and it goes on reading its initial value. An id that has a
row is not asked about again; one that was evicted is unseen again.

What is counted is steps, not occurrences: the number is the same for any micro-batches and ranks.
A step that raises counts nothing. Each rank has a filter for the keys that it owns, so all sizes
are those of one table on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from sparring.errors import InvalidArgumentError
from sparring.runtime.suggestions import closest_name

__all__ = [
    "ADMISSIONS",
    "Admission",
    "AdmissionLike",
    "Bloom",
    "Frequency",
    "Probability",
    "admission_from",
]


@dataclass(frozen=True, slots=True)
class Admission:
    """The base of all admission filters. `kind` is the name in configs."""

    kind: ClassVar[str] = ""

    def as_dict(self) -> dict[str, Any]:
        """For configs and manifests: ``{"kind": …, parameter: value, …}``."""
        return {"kind": self.kind} | {f.name: getattr(self, f.name) for f in fields(self)}


AdmissionLike = Admission | str | Mapping[str, Any] | None
"""An `Admission`, ``{"kind": name, parameter: value}``, or None, which admits every id."""


@dataclass(frozen=True, slots=True)
class Frequency(Admission):
    """Admits an id in the `k`-th step that trained on it, counting exactly.

    Args:
        k: steps, at least 1.
        memory_bytes: the most that the counters take, 16 bytes an id; they begin small. When they
            are full, all counts are halved and ids that came once are forgotten: an id may then
            be admitted later, never earlier.

    Raises:
        InvalidArgumentError: a value out of range.
    """

    k: int
    memory_bytes: int = 64 << 20
    kind: ClassVar[str] = "frequency"

    def __post_init__(self) -> None:
        _check_whole(self, "k", 1, 2**32 - 1)
        _check_whole(self, "memory_bytes", 768, 2**50)


@dataclass(frozen=True, slots=True)
class Probability(Admission):
    """Admits an id in each step that trained on it with probability `p`; remembers nothing.

    The answer is a function of the table's seed and name, the step and the id.

    Raises:
        InvalidArgumentError: `p` is outside [0, 1].
    """

    p: float
    kind: ClassVar[str] = "probability"

    def __post_init__(self) -> None:
        _check_number(self, "p", "lie from 0 to 1", 0, 1)


@dataclass(frozen=True, slots=True)
class Bloom(Admission):
    """Admits an id in the `k`-th step that trained on it, or by mistake earlier.

    A blocked counting Bloom filter, of a size that is fixed from the beginning. At a
    `false_positive_rate` of 0.01 an expected id costs 5.4 bytes, at 0.001 9.5; twice that where
    `k` is above 16. The formula and its sources stand in
    ``native/kernels/bloom_shape.h``.

    Args:
        k: steps, 1 to 256.
        false_positive_rate: the most that may be the share of ids admitted too early, while at
            most `expected_keys` distinct ones came; beyond that it grows.
        expected_keys: makes the filter as large as this many need.
        memory_bytes: makes the filter this large, in place of `expected_keys`. Neither means a
            million keys.

    Raises:
        InvalidArgumentError: a value out of range, or both sizes given.
    """

    k: int
    false_positive_rate: float = 0.01
    expected_keys: int | None = None
    memory_bytes: int | None = None
    kind: ClassVar[str] = "bloom"

    def __post_init__(self) -> None:
        _check_whole(self, "k", 1, 256)
        _check_number(
            self, "false_positive_rate", "be at least 1e-09 and below 1", 1e-9, 1 - 2**-53
        )
        if self.expected_keys is not None and self.memory_bytes is not None:
            raise InvalidArgumentError(
                f"admission bloom: found both expected_keys={self.expected_keys} and memory_bytes="
                f"{self.memory_bytes}; give one of them, as the other follows from it"
            )
        if self.memory_bytes is not None:
            _check_whole(self, "memory_bytes", 128, 2**50)
            return
        if self.expected_keys is None:
            object.__setattr__(self, "expected_keys", 1_000_000)
        _check_whole(self, "expected_keys", 1, 2**40)


ADMISSIONS: dict[str, type[Admission]] = {
    kind.kind: kind for kind in (Frequency, Probability, Bloom)
}


def admission_from(value: AdmissionLike) -> Admission | None:
    """A filter from itself, or ``{"kind": name, parameter: value}``; None admits every id.

    Raises:
        InvalidArgumentError: unknown name or parameter, one that is missing or out of range.
    """
    if value is None or isinstance(value, Admission):
        return value
    if not isinstance(value, (str, Mapping)):
        raise InvalidArgumentError(
            f"admission: must be an Admission, a mapping with 'kind', or None, found {value!r}"
        )
    settings = {"kind": value} if isinstance(value, str) else dict(value)
    name = settings.pop("kind", None)
    kind = ADMISSIONS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidArgumentError(
            f"admission {name!r} is unknown; choose one of {', '.join(ADMISSIONS)}"
        )
    known = [f.name for f in fields(kind)]
    for given in settings:
        if given not in known:
            meant = closest_name(str(given), known)
            hint = f"did you mean {meant!r}? " if meant is not None else ""
            raise InvalidArgumentError(
                f"admission {name}: unknown parameter {given!r}; {hint}it takes {', '.join(known)}"
            )
    needed = known[0]
    if needed not in settings:
        raise InvalidArgumentError(
            f"admission {name}: parameter {needed!r} is missing; give it as "
            f"{{'kind': {name!r}, {needed!r}: …}}"
        )
    return kind(**settings)


def _check_whole(admission: Admission, name: str, low: int, high: int) -> None:
    value = getattr(admission, name)
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= value <= high:
        raise InvalidArgumentError(
            f"admission {admission.kind}: {name} must be a whole number from {low} to {high}, "
            f"found {value!r}"
        )
    object.__setattr__(admission, name, int(value))


def _check_number(admission: Admission, name: str, range_: str, low: float, high: float) -> None:
    value = getattr(admission, name)
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise InvalidArgumentError(
            f"admission {admission.kind}: {name} must {range_}, found {value!r}"
        )
    object.__setattr__(admission, name, float(value))
