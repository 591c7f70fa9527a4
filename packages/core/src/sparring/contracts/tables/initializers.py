"""Initial values of keys, which a lookup returns before a key has a row.

An initial value is a pure function of (seed, table name, key, column). It is the same for any batch
order, thread count, world size, backend, device and framework. Therefore it does not need to be
stored until a gradient arrives. Random bits come from Philox4x32-10 (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011), one 32-bit word per column. Normal values are
computed with the inverse of the normal distribution function (Wichura, algorithm AS 241, 1988). The
arithmetic is IEEE double without fused multiply-add; see ``include/sparring/initial_value.h``.
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
    """Base class of all initializers. `kind` is the name in configurations and the native kernel.

    Examples:
        >>> from sparring import Constant, Normal, TruncatedNormal, Uniform, Xavier, Zeros
        >>> from sparring import TableConfig
        >>> TableConfig("item", dim=16, initializer=Uniform(-0.1, 0.1)).initializer.as_dict()
        {'kind': 'uniform', 'low': -0.1, 'high': 0.1}
        >>> TableConfig("item", dim=16, initializer={"kind": "normal", "stddev": 0.1}).initializer
        Normal(mean=0.0, stddev=0.1)
        >>> others = Zeros(), Constant(2), TruncatedNormal(stddev=0.5), Xavier(gain=0.5)
        >>> [each.max_abs(dim=5) for each in others]
        [0.0, 2.0, 1.0, 0.5]
    """

    kind: ClassVar[str] = ""

    @abstractmethod
    def parameters(self, dim: int) -> tuple[float, float]:
        """Returns the two parameters of the native kernel.

        Args:
            dim: number of elements of an embedding.
        """

    @abstractmethod
    def max_abs(self, dim: int) -> float:
        """Returns an upper bound of the absolute value of an element; infinity if it overflows.

        Args:
            dim: number of elements of an embedding.
        """

    def as_dict(self) -> dict[str, Any]:
        """Returns ``{"kind": …, parameter: value, …}``, for configurations and manifests."""
        return {"kind": self.kind} | asdict(self)


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Zeros(Initializer):
    """Initializes embeddings with zeros."""

    kind: ClassVar[str] = "zeros"

    def parameters(self, dim: int) -> tuple[float, float]:
        return 0.0, 0.0

    def max_abs(self, dim: int) -> float:
        return 0.0


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Constant(Initializer):
    """Initializes all elements with one number."""

    value: Annotated[Number, Field(description="Value of each element.")] = 0.0
    kind: ClassVar[str] = "constant"

    def parameters(self, dim: int) -> tuple[float, float]:
        return self.value, 0.0

    def max_abs(self, dim: int) -> float:
        return abs(self.value)


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Uniform(Initializer):
    """Initializes with a uniform distribution between two bounds, both exclusive."""

    low: Annotated[Number, Field(description="The lower bound.")] = -0.05
    high: Annotated[Number, Field(description="The upper bound, above `low`.")] = 0.05
    kind: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidArgumentError(
                f"initializer uniform: low must be below high, found low={self.low} and "
                f"high={self.high}"
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
    """Initializes with a normal distribution."""

    mean: Annotated[Number, Field(description="The mean.")] = 0.0
    stddev: Annotated[Number, Field(ge=0, description="The standard deviation.")] = 0.01
    kind: ClassVar[str] = "normal"

    def parameters(self, dim: int) -> tuple[float, float]:
        return self.mean, self.stddev

    def max_abs(self, dim: int) -> float:
        # The extreme value of 32 random bits: the inverse of the normal distribution function at
        # 2**-33 is -6.34.
        return abs(self.mean) + 6.4 * self.stddev


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class TruncatedNormal(Normal):
    """Initializes with a normal distribution truncated at two standard deviations from the mean."""

    stddev: Annotated[
        Number,
        Field(ge=0, description="The standard deviation before truncation."),
    ] = 0.01
    kind: ClassVar[str] = "truncated_normal"

    def max_abs(self, dim: int) -> float:
        return abs(self.mean) + 2 * self.stddev


@checked("initializer")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Xavier(Initializer):
    """Initializes with a uniform distribution between ±gain·√(6 / (1 + dim)).

    This is the method of Glorot and Bengio (2010) with a fan-in of 1, because an id selects one row.
    The number of rows is unknown and has no effect.
    """

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
    """Creates an initializer from a name or mapping; an `Initializer` is returned unchanged.

    Args:
        value: an `Initializer`, its name, or ``{"kind": name, parameter: value}``.

    Raises:
        InvalidArgumentError: unknown name or parameter, or a parameter is not a finite number.
    """
    if isinstance(value, Initializer):
        return value
    if not isinstance(value, (str, Mapping)):
        raise InvalidArgumentError(
            "initializer: must be an Initializer, a name or a mapping with 'kind', found "
            f"{type(value).__name__}"
        )
    made: Initializer = parse_setting("initializer", INITIALIZERS, value)
    return made
