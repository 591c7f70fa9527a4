"""Initial values of keys, which a lookup returns before a key has a row.

An initial value is a pure function of (seed, table name, key, column): the same for any batch
order, thread count, world size, backend, device and framework, so nothing need be stored until
a gradient arrives. Random bits come from Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011), one 32-bit word a column; normal values from the inverse
of the normal distribution function (Wichura, algorithm AS 241, 1988). The arithmetic is IEEE
double, without fused multiply-add, in ``include/sparring/initial_value.h``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from sparring.contracts.settings import SETTINGS, Number, checked, parse_setting
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
    "parse_initializer",
]


@dataclass(frozen=True, slots=True, config=SETTINGS)
class Initializer(ABC):
    """The base of all initializers. `kind` is the name in configs and in the native kernel."""

    kind: ClassVar[str] = ""

    @abstractmethod
    def parameters(self, dim: int) -> tuple[float, float]:
        """The two numbers that the native kernel takes, for embeddings of `dim` elements."""

    @abstractmethod
    def max_abs(self, dim: int) -> float:
        """Bound of the absolute value of initial values, for embeddings of `dim` elements."""

    def as_dict(self) -> dict[str, Any]:
        """For configs and manifests: ``{"kind": …, parameter: value, …}``."""
        return {"kind": self.kind} | asdict(self)


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Zeros(Initializer):
    """All zeros."""

    kind: ClassVar[str] = "zeros"

    def parameters(self, dim: int) -> tuple[float, float]:
        return 0.0, 0.0

    def max_abs(self, dim: int) -> float:
        return 0.0


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Constant(Initializer):
    """One number everywhere."""

    value: Annotated[Number, Field(description="The number.")] = 0.0
    kind: ClassVar[str] = "constant"

    def parameters(self, dim: int) -> tuple[float, float]:
        return self.value, 0.0

    def max_abs(self, dim: int) -> float:
        return abs(self.value)


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Uniform(Initializer):
    """Evenly between two bounds, both excluded."""

    low: Annotated[Number, Field(description="The lower bound.")] = -0.05
    high: Annotated[Number, Field(description="The upper bound, above `low`.")] = 0.05
    kind: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidArgumentError(
                f"initializer uniform: low must be below high, found {self.low} and {self.high}"
            )

    def parameters(self, dim: int) -> tuple[float, float]:
        return self.low, self.high

    def max_abs(self, dim: int) -> float:
        # The kernel computes low + (high - low) * u: the difference must be a double too.
        is_number = math.isfinite(self.high - self.low)
        return max(abs(self.low), abs(self.high)) if is_number else math.inf


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Normal(Initializer):
    """The normal distribution."""

    mean: Annotated[Number, Field(description="The mean.")] = 0.0
    stddev: Annotated[Number, Field(ge=0, description="The standard deviation.")] = 0.01
    kind: ClassVar[str] = "normal"

    def parameters(self, dim: int) -> tuple[float, float]:
        return self.mean, self.stddev

    def max_abs(self, dim: int) -> float:
        # The farthest that 32 random bits lead: the inverse of the normal distribution function
        # at 2**-33 is -6.34.
        return abs(self.mean) + 6.4 * self.stddev


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class TruncatedNormal(Normal):
    """The normal distribution within two standard deviations of its mean."""

    stddev: Annotated[
        Number,
        Field(ge=0, description="The standard deviation, before what is outside is cut off."),
    ] = 0.01
    kind: ClassVar[str] = "truncated_normal"

    def max_abs(self, dim: int) -> float:
        return abs(self.mean) + 2 * self.stddev


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Xavier(Initializer):
    """Evenly between ±gain·√(6 / (1 + dim))."""

    # Glorot and Bengio (2010) with one input: an id selects one row, so the fan-in of a row is 1. The
    # number of rows is unknown and has no effect.
    gain: Annotated[Number, Field(gt=0, description="Scales the bounds.")] = 1.0
    kind: ClassVar[str] = "xavier"

    def parameters(self, dim: int) -> tuple[float, float]:
        limit = self.gain * (6.0 / (1 + dim)) ** 0.5
        return -limit, limit

    def max_abs(self, dim: int) -> float:
        low, high = self.parameters(dim)
        return high if math.isfinite(high - low) else math.inf


INITIALIZERS: dict[str, type[Initializer]] = {
    kind.kind: kind for kind in (Zeros, Constant, Uniform, Normal, TruncatedNormal, Xavier)
}


def parse_initializer(value: Initializer | str | Mapping[str, Any]) -> Initializer:
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
    made: Initializer = parse_setting("initializer", INITIALIZERS, value)
    return made
