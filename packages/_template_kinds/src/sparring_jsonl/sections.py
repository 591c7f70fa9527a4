"""Sections of the configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sparring.contracts import LocalPath, TableConfig
from sparring_train import DataSection, Feature, ModelSection, Schema

__all__ = ["FactorizationMachineModel", "JsonLinesData"]

# strict=False, because YAML has lists and no tuples.
_Keys = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]


class JsonLinesData(DataSection):
    """JSON objects, one per line."""

    kind: Literal["json_lines"]
    path: LocalPath = Field(min_length=1, description="Path of the file, which is UTF-8.")
    label: str = Field(
        min_length=1, description="Key of the label, which is 0 or 1, false or true."
    )
    ids: _Keys = Field(min_length=1, description="Keys of ids, which are strings or integers.")
    numbers: _Keys = Field((), description="Keys of numbers.")
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="Fraction of the lines, drawn with `seed`, that is used for the test."
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        1024, description="Number of examples per step, over all ranks and micro-batches."
    )

    @property
    def columns(self) -> Schema:
        """Returns the columns of the examples, without reading the file."""
        return Schema(tuple(map(Feature, self.ids)), numbers=self.numbers, label="binary")


class FactorizationMachineModel(ModelSection):
    """Predicts clicks from weights of ids and numbers, and from products of pairs of embeddings."""

    kind: Literal["factorization_machine"]
    dim: Annotated[int, Field(ge=1, le=4096)] = Field(
        8, description="Number of elements per embedding."
    )

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """Returns one table per feature or shared group. A row ends with the weight of the id."""
        return tuple(TableConfig(name, self.dim + 1) for name in schema.table_names)

    @property
    def embedding_parts(self) -> dict[str, Any]:
        """Returns the slice of each part of an embedding."""
        return {"embedding": [0, self.dim], "weight": [self.dim, self.dim + 1]}
