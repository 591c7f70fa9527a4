"""Initial values of keys without a row: one model for each initializer.

The numbers, their defaults and their meaning are those of `sparring.contracts.initializers`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparring.contracts import initializers
from sparring.errors import InvalidArgumentError
from sparring_train.config.section import NonNegativeFloat, PositiveFloat, Section, kind_from_name

__all__ = [
    "ConstantInitializer",
    "InitializerConfig",
    "NormalInitializer",
    "TruncatedNormalInitializer",
    "UniformInitializer",
    "XavierInitializer",
    "ZerosInitializer",
]


class _InitializerSection(Section):
    @model_validator(mode="after")
    def _accepted_by_core(self) -> _InitializerSection:
        try:
            self.initializer()
        except InvalidArgumentError as error:
            raise ValueError(str(error)) from None
        return self

    def initializer(self) -> initializers.Initializer:
        """The initializer that `sparring.TableConfig` takes."""
        return initializers.initializer_from(self.model_dump())


class ZerosInitializer(_InitializerSection):
    """All zeros."""

    kind: Literal["zeros"]


class ConstantInitializer(_InitializerSection):
    """One number everywhere."""

    kind: Literal["constant"]
    value: float = Field(0.0, description="The number.")


class UniformInitializer(_InitializerSection):
    """Evenly between two bounds, both excluded."""

    kind: Literal["uniform"]
    low: float = Field(-0.05, description="The lower bound.")
    high: float = Field(0.05, description="The upper bound, above `low`.")


class NormalInitializer(_InitializerSection):
    """The normal distribution."""

    kind: Literal["normal"]
    mean: float = Field(0.0, description="The mean.")
    stddev: NonNegativeFloat = Field(0.01, description="The standard deviation.")


class TruncatedNormalInitializer(_InitializerSection):
    """The normal distribution within two standard deviations of its mean."""

    kind: Literal["truncated_normal"]
    mean: float = Field(0.0, description="The mean.")
    stddev: NonNegativeFloat = Field(
        0.01, description="The standard deviation, before what is outside is cut off."
    )


class XavierInitializer(_InitializerSection):
    """Evenly between ±gain·√(6 / (1 + dim))."""

    kind: Literal["xavier"]
    gain: PositiveFloat = Field(1.0, description="Scales the bounds.")


InitializerConfig = Annotated[
    Annotated[
        ZerosInitializer
        | ConstantInitializer
        | UniformInitializer
        | NormalInitializer
        | TruncatedNormalInitializer
        | XavierInitializer,
        Field(discriminator="kind"),
    ],
    BeforeValidator(kind_from_name),
]
