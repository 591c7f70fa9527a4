"""Kinds of the `model` section that are built in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sparring import Uniform
from sparring.contracts import TableConfig
from sparring_train.columns import Schema
from sparring_train.config.section import NonNegativeFloat, PositiveInt
from sparring_train.config.sections.kinds import Loss, ModelSection

__all__ = [
    "DeepFmModel",
    "Dim",
    "DlrmModel",
    "Layers",
    "MatrixFactorizationModel",
    "Pooling",
    "pooling_field",
]

Dim = Annotated[int, Field(ge=1, le=65_536)]
Pooling = Literal["sum", "mean"]
Layers = Annotated[tuple[PositiveInt, ...], Field(max_length=64, strict=False)]


def pooling_field() -> Any:
    """The key `pooling` of a model."""
    return Field(
        "sum", description="What makes one embedding of the ids of a list: their sum or mean."
    )


class MatrixFactorizationModel(ModelSection):
    """Biased matrix factorisation: mean + user bias + item bias + user · item."""

    kind: Literal["matrix_factorization"]
    dim: int = Field(
        32,
        ge=1,
        le=65_535,  # A row also holds the bias.
        description="Elements of a user's and of an item's vector.",
    )
    embedding_l2: NonNegativeFloat = Field(
        0.1, description="Weight of the squared embeddings in the loss."
    )
    bias_l2: NonNegativeFloat = Field(
        0.005, description="Weight of the squared biases in the loss."
    )

    user: str = Field("user", min_length=1, description="The feature that has the user.")
    item: str = Field("item", min_length=1, description="The feature that has the item.")

    @property
    def loss(self) -> Loss:
        return "squared_error"

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """One of users and one of items; an embedding has one element more than a vector, the bias."""
        initial = Uniform(-0.05, 0.05)
        return tuple(
            TableConfig(name, self.dim + 1, initializer=initial) for name in self._tables(schema)
        )

    def problem(self, schema: Schema) -> str | None:
        """See `ModelSection`."""
        for key, name in (("user", self.user), ("item", self.item)):
            feature = schema.feature(name)
            known = ", ".join(each.name for each in schema.features)
            if feature is None:
                return f"model.{key} is {name!r}, the features of the data are {known}"
            if feature.is_list:
                return f"model.{key} is {name!r}, which is a list; it takes one id an example"
            if feature.may_be_missing:
                return f"model.{key} is {name!r}, which rows may lack; name it in data.required"
        if len(set(self._tables(schema))) < 2:
            return "model.user and model.item must have a table each"
        return None

    def _tables(self, schema: Schema) -> tuple[str, ...]:
        features = (schema.feature(self.user), schema.feature(self.item))
        return tuple(each.table_name for each in features if each is not None)

    @property
    def read_embedding_parts(self) -> dict[str, Any]:
        """Part → where it is in a row; see `sparring.EMBEDDING_PARTS`."""
        return {"bias": [0, 1], "embedding": [1, self.dim + 1]}


class DlrmModel(ModelSection):
    """Deep learning recommendation model: Naumov et al., arXiv 1906.00091 (2019)."""

    kind: Literal["dlrm"]
    embedding_dim: Dim = Field(16, description="Elements of an embedding, the same everywhere.")
    bottom_mlp: Layers = Field(
        (64, 32),
        description="Widths of the hidden layers over the integers; a last layer of "
        "`embedding_dim` is added.",
    )
    top_mlp: Layers = Field(
        (64, 32),
        description="Widths of the hidden layers over the interactions; a last layer of 1 is "
        "added.",
    )
    pooling: Pooling = pooling_field()

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """One for each feature, or group of features that share one."""
        return _one_each(schema, self.embedding_dim)


class DeepFmModel(ModelSection):
    """Factorisation machine and layers over the same embeddings: Guo et al., arXiv 1703.04247."""

    kind: Literal["deepfm"]
    embedding_dim: Dim = Field(16, description="Elements of an embedding, the same everywhere.")
    hidden_layer: PositiveInt = Field(64, description="Width of the hidden layer over numbers.")
    deep_layer: PositiveInt = Field(
        64, description="Width of the layer over all embeddings, the deep part."
    )
    pooling: Pooling = pooling_field()

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """One for each feature, or group of features that share one."""
        return _one_each(schema, self.embedding_dim)


def _one_each(schema: Schema, dim: int) -> tuple[TableConfig, ...]:
    return tuple(TableConfig(name, dim) for name in schema.table_names)
