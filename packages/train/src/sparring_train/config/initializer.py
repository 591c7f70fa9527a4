"""Initial values of keys without a row: one model for each initializer.

The numbers, their defaults and their meaning are those of `sparring.contracts.initializers`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from sparring.contracts import TableConfig, initializers
from sparring.errors import ConfigError, InvalidArgumentError
from sparring_train.config.names import OWN, ClassName, tag_of
from sparring_train.config.section import NonNegativeFloat, PositiveFloat, Section, kind_from_name
from sparring_train.named_classes import create, find_class

__all__ = [
    "ConstantInitializer",
    "InitializerConfig",
    "NormalInitializer",
    "OwnInitializer",
    "TruncatedNormalInitializer",
    "UniformInitializer",
    "XavierInitializer",
    "ZerosInitializer",
]


class _InitializerSection(Section):
    @model_validator(mode="after")
    def _accepted_by_core(self) -> _InitializerSection:
        try:
            initializers.initializer_from(self.model_dump())
        except InvalidArgumentError as error:
            raise ValueError(str(error)) from None
        return self

    def initializer(self, table: TableConfig) -> initializers.Initializer:
        """The initializer of a table."""
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


class OwnInitializer(Section):
    """A class of one's own, which chooses one of the other kinds for each table. Any other key goes to
    it as it stands.

    It is derived from `sparring.contracts.Initializer`, or has a method `initializer(table)`, which is
    called with the `TableConfig` of a table and returns an `Initializer` of this project.
    """

    model_config = ConfigDict(extra="allow")

    kind: ClassName

    def initializer(self, table: TableConfig) -> initializers.Initializer:
        """The initializer of a table.

        Raises:
            ConfigError: there is no such class, it does not accept its arguments, or returns something
                else.
        """
        setting = "tables.initializer"
        found: type[Any] = find_class(self.kind, setting)
        if not issubclass(found, initializers.Initializer):
            found = find_class(self.kind, setting, methods=("initializer",))
        made: Any = create(found, self.kind, setting, options=self.model_extra or {})
        if not isinstance(made, initializers.Initializer):
            made = made.initializer(table)
        # Kernels compute initial values, and a snapshot names their kind.
        if type(made) not in initializers.INITIALIZERS.values():
            kinds = ", ".join(each.__name__ for each in initializers.INITIALIZERS.values())
            raise ConfigError(
                f"{setting}: {self.kind} made a {type(made).__name__} for table {table.name!r}, expected "
                f"one of {kinds} of sparring.contracts; return one of these",
                setting=setting,
            )
        chosen: initializers.Initializer = made
        return chosen


InitializerConfig = Annotated[
    Annotated[ZerosInitializer, Tag("zeros")]
    | Annotated[ConstantInitializer, Tag("constant")]
    | Annotated[UniformInitializer, Tag("uniform")]
    | Annotated[NormalInitializer, Tag("normal")]
    | Annotated[TruncatedNormalInitializer, Tag("truncated_normal")]
    | Annotated[XavierInitializer, Tag("xavier")]
    | Annotated[OwnInitializer, Tag(OWN)],
    Discriminator(tag_of),
    BeforeValidator(kind_from_name),
]
