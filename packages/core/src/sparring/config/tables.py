"""How tables are kept: the `tables` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparring.config.initializer import InitializerConfig
from sparring.config.section import Section
from sparring.table import TableConfig

__all__ = ["TableOverride", "TablesConfig"]

_Dtype = Literal["float32", "float64"]
_Dim = Annotated[int, Field(ge=1, le=65_536)]


class TableOverride(Section):
    """What one table does differently; null leaves it as it is."""

    dim: _Dim | None = Field(None, description="Elements of an embedding.")
    dtype: _Dtype | None = Field(None, description="`float32` or `float64`.")
    initializer: InitializerConfig | None = Field(
        None, description="What a key reads as before it has a row."
    )


class TablesConfig(Section):
    """What all tables share, and what single ones do differently.

    The model says which tables there are, and of which dim.
    """

    dtype: _Dtype = Field("float32", description="`float32` or `float64`.")
    initializer: InitializerConfig | None = Field(
        None,
        description="What a key reads as before it has a row: a mapping, or a name for the "
        "defaults of that kind. Null takes what the model wants.",
    )
    overrides: dict[str, TableOverride] = Field(
        default_factory=dict,
        description="Table name → what it does differently.",
    )

    def table_config(self, wanted: TableConfig) -> TableConfig:
        """The table that a model wants, with this section's settings in place of its own.

        Args:
            wanted: the model's name, dim, seed and initializer; its dtype is not used.
        """
        override = self.overrides.get(wanted.name, TableOverride())
        section = override.initializer or self.initializer
        return TableConfig(
            name=wanted.name,
            dim=override.dim or wanted.dim,
            dtype=override.dtype or self.dtype,
            initializer=section.initializer() if section else wanted.initializer,
            state_width=wanted.state_width,
            seed=wanted.seed,
        )
