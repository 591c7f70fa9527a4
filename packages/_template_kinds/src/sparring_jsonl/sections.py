"""Sections of the configuration: the keys that a user writes, and what follows from them alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sparring.contracts import LocalPath, TableConfig
from sparring_train import DataSection, Feature, ModelSection, Schema

__all__ = ["FactorizationMachineModel", "JsonLinesData"]

# strict=False: YAML has lists where Python has tuples.
_Keys = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]


class JsonLinesData(DataSection):
    """Objects of JSON, one a line."""

    kind: Literal["json_lines"]
    path: LocalPath = Field(min_length=1, description="The file, in UTF-8.")
    label: str = Field(min_length=1, description="The key of the label: 0 or 1, false or true.")
    ids: _Keys = Field(min_length=1, description="Keys of ids: strings or whole numbers.")
    numbers: _Keys = Field((), description="Keys of numbers.")
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="The part of the lines, drawn by `seed`, that is kept for the test."
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        1024, description="Examples in a step, over all ranks and micro-batches."
    )

    @property
    def columns(self) -> Schema:
        """Columns of the examples; the file is not read for it."""
        return Schema(tuple(map(Feature, self.ids)), numbers=self.numbers, label="binary")


class FactorizationMachineModel(ModelSection):
    """A click by weights of ids and numbers, and by the products of each two embeddings."""

    kind: Literal["factorization_machine"]
    dim: Annotated[int, Field(ge=1, le=4096)] = Field(8, description="Elements of an embedding.")

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """One for each feature, or group of features that share one; a row ends with the weight."""
        return tuple(TableConfig(name, self.dim + 1) for name in schema.table_names)

    @property
    def read_embedding_parts(self) -> dict[str, Any]:
        """Part → where it is in a row."""
        return {"embedding": [0, self.dim], "weight": [self.dim, self.dim + 1]}
