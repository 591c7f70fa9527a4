"""Built-in kinds of the `model` section."""

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
    """Returns the field for the key `pooling` of a model."""
    return Field(
        "sum", description="Reduction of the embeddings of a list to one: their sum or mean."
    )


class MatrixFactorizationModel(ModelSection):
    """Biased matrix factorization: mean + user bias + item bias + user · item."""

    kind: Literal["matrix_factorization"]
    dim: int = Field(
        32,
        ge=1,
        le=65_535,  # The embedding also contains the bias.
        description="Number of elements of the user and item vectors.",
    )
    embedding_l2: NonNegativeFloat = Field(
        0.1, description="Weight of the squared embeddings in the loss."
    )
    bias_l2: NonNegativeFloat = Field(
        0.005, description="Weight of the squared biases in the loss."
    )

    user: str = Field("user", min_length=1, description="The feature that contains the user.")
    item: str = Field("item", min_length=1, description="The feature that contains the item.")

    @property
    def loss(self) -> Loss:
        return "squared_error"

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """Returns a table of users and one of items. Embeddings consist of the bias and the vector."""
        initial = Uniform(-0.05, 0.05)
        return tuple(
            TableConfig(name, self.dim + 1, initializer=initial) for name in self._tables(schema)
        )

    def problem(self, schema: Schema) -> str | None:
        """See `ModelSection.problem`."""
        for key, name in (("user", self.user), ("item", self.item)):
            feature = schema.feature(name)
            known = ", ".join(each.name for each in schema.features)
            if feature is None:
                return f"model.{key} is {name!r}; name one of the features of the data: {known}"
            if feature.is_list:
                return f"model.{key} is {name!r}, which is a list; name a feature with one id per example"
            if feature.may_be_missing:
                return f"model.{key} is {name!r}, which may be missing in rows; add it to data.required"
        if len(set(self._tables(schema))) < 2:
            return "model.user and model.item share a table; give each a separate one"
        return None

    def _tables(self, schema: Schema) -> tuple[str, ...]:
        features = (schema.feature(self.user), schema.feature(self.item))
        return tuple(each.table_name for each in features if each is not None)

    @property
    def embedding_parts(self) -> dict[str, Any]:
        """See `ModelSection.embedding_parts`."""
        return {"bias": [0, 1], "embedding": [1, self.dim + 1]}


class DlrmModel(ModelSection):
    """Deep learning recommendation model (DLRM): Naumov et al., arXiv 1906.00091 (2019)."""

    kind: Literal["dlrm"]
    embedding_dim: Dim = Field(16, description="Number of elements of an embedding, in all tables.")
    bottom_mlp: Layers = Field(
        (64, 32),
        description="Widths of the hidden layers for numbers; an output layer of width "
        "`embedding_dim` is added.",
    )
    top_mlp: Layers = Field(
        (64, 32),
        description="Widths of the hidden layers for the interactions; an output layer of width 1 is "
        "added.",
    )
    pooling: Pooling = pooling_field()

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """Returns one table per feature, or per group of features that share one."""
        return _one_each(schema, self.embedding_dim)


class DeepFmModel(ModelSection):
    """Factorization machine and dense layers on the same embeddings (DeepFM): Guo et al., arXiv
    1703.04247."""

    kind: Literal["deepfm"]
    embedding_dim: Dim = Field(16, description="Number of elements of an embedding, in all tables.")
    hidden_layer: PositiveInt = Field(64, description="Width of the hidden layer for numbers.")
    deep_layer: PositiveInt = Field(
        64, description="Width of the deep layer, whose input is all embeddings."
    )
    pooling: Pooling = pooling_field()

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """Returns one table per feature, or per group of features that share one."""
        return _one_each(schema, self.embedding_dim)


def _one_each(schema: Schema, dim: int) -> tuple[TableConfig, ...]:
    return tuple(TableConfig(name, dim) for name in schema.table_names)
