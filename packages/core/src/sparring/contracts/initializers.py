"""Initial values of keys, which a lookup returns before a key has a row.

An initial value is a pure function of (seed, table name, key, column): the same for any batch
order, thread count, world size, backend, device and framework, so nothing need be stored until
a gradient arrives. Random bits come from Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011), one 32-bit word a column; normal values from the inverse
of the normal distribution function (Wichura, algorithm AS 241, 1988). The arithmetic is IEEE
double, without fused multiply-add, in ``native/kernels/initialize.cc``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from sparring.errors import InvalidArgumentError

__all__ = [
    "INITIALIZERS",
    "Constant",
    "Initializer",
    "Normal",
    "TruncatedNormal",
    "Uniform",
    "Xavier",
    "Zeros",
    "initializer_from",
]


@dataclass(frozen=True, slots=True)
class Initializer(ABC):
    """The base of all initializers. `kind` is the name in configs and in the native kernel."""

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not _is_finite_number(value):
                raise InvalidArgumentError(
                    f"initializer {self.kind}: {each.name} must be a finite number, found {value!r}; "
                    "give a float"
                )

    @abstractmethod
    def parameters(self, dim: int) -> tuple[float, float]:
        """The two numbers that the native kernel takes, for embeddings of `dim` elements."""

    @abstractmethod
    def largest(self, dim: int) -> float:
        """Bound of the absolute value of initial values, for embeddings of `dim` elements."""

    def as_dict(self) -> dict[str, Any]:
        """For configs and manifests: ``{"kind": …, parameter: value, …}``."""
        return {"kind": self.kind} | {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class Zeros(Initializer):
    kind: ClassVar[str] = "zeros"

    def parameters(self, dim: int) -> tuple[float, float]:
        return 0.0, 0.0

    def largest(self, dim: int) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    value: float = 0.0
    kind: ClassVar[str] = "constant"

    def parameters(self, dim: int) -> tuple[float, float]:
        return self.value, 0.0

    def largest(self, dim: int) -> float:
        return abs(self.value)


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Uniform in the open interval (low, high)."""

    low: float = -0.05
    high: float = 0.05
    kind: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        Initializer.__post_init__(self)
        if not self.low < self.high:
            raise InvalidArgumentError(
                f"initializer uniform: low must be below high, found {self.low} and {self.high}"
            )

    def parameters(self, dim: int) -> tuple[float, float]:
        return self.low, self.high

    def largest(self, dim: int) -> float:
        # The kernel computes low + (high - low) * u: the difference must be a double too.
        is_number = math.isfinite(self.high - self.low)
        return max(abs(self.low), abs(self.high)) if is_number else math.inf


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Normal with the given mean and standard deviation."""

    mean: float = 0.0
    stddev: float = 0.01
    kind: ClassVar[str] = "normal"

    def __post_init__(self) -> None:
        Initializer.__post_init__(self)
        if self.stddev < 0:
            raise InvalidArgumentError(
                f"initializer {self.kind}: stddev must not be negative, found {self.stddev}"
            )

    def parameters(self, dim: int) -> tuple[float, float]:
        return self.mean, self.stddev

    def largest(self, dim: int) -> float:
        # The farthest that 32 random bits lead: the inverse of the normal distribution function
        # at 2**-33 is -6.34.
        return abs(self.mean) + 6.4 * self.stddev


@dataclass(frozen=True, slots=True)
class TruncatedNormal(Normal):
    """Normal, restricted to two standard deviations on either side of the mean."""

    kind: ClassVar[str] = "truncated_normal"

    def largest(self, dim: int) -> float:
        return abs(self.mean) + 2 * self.stddev


@dataclass(frozen=True, slots=True)
class Xavier(Initializer):
    """Uniform in ±gain·sqrt(6 / (1 + dim)).

    Glorot and Bengio (2010) with one input: an id selects one row, so the fan-in of a row is 1,
    and the number of rows, which is unknown here, plays no part.
    """

    gain: float = 1.0
    kind: ClassVar[str] = "xavier"

    def __post_init__(self) -> None:
        Initializer.__post_init__(self)
        if not self.gain > 0:
            raise InvalidArgumentError(
                f"initializer xavier: gain must be positive, found {self.gain}"
            )

    def parameters(self, dim: int) -> tuple[float, float]:
        limit = self.gain * (6.0 / (1 + dim)) ** 0.5
        return -limit, limit

    def largest(self, dim: int) -> float:
        low, high = self.parameters(dim)
        return high if math.isfinite(high - low) else math.inf


INITIALIZERS: dict[str, type[Initializer]] = {
    kind.kind: kind for kind in (Zeros, Constant, Uniform, Normal, TruncatedNormal, Xavier)
}


def initializer_from(value: Initializer | str | dict[str, Any]) -> Initializer:
    """An initializer from itself, its name, or ``{"kind": name, parameter: value}``.

    Raises:
        InvalidArgumentError: unknown name or parameter, or a parameter that is no finite number.
    """
    if isinstance(value, Initializer):
        return value
    if not isinstance(value, (str, Mapping)):
        raise InvalidArgumentError(
            "an initializer is an Initializer, a name or a mapping with a kind, found "
            f"{type(value).__name__}"
        )
    settings = {"kind": value} if isinstance(value, str) else dict(value)
    name = settings.pop("kind", None)
    kind = INITIALIZERS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidArgumentError(
            f"initializer {name!r} is unknown; choose one of {', '.join(INITIALIZERS)}"
        )
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise InvalidArgumentError(
            f"initializer {name}: unknown parameter {unknown[0]!r}; it takes "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return kind(**settings)


def _is_finite_number(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
