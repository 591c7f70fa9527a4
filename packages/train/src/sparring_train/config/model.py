"""The `model` section, the model to train: one Pydantic model for each `kind`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sparring_train.config.section import NonNegativeFloat, PositiveInt, Section

__all__ = ["DlrmModel", "MatrixFactorizationModel", "ModelConfig"]

_Dim = Annotated[int, Field(ge=1, le=65_536)]
_Layers = Annotated[tuple[PositiveInt, ...], Field(max_length=64, strict=False)]


class MatrixFactorizationModel(Section):
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

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables of this model."""
        return ("user", "item")

    @property
    def row_dim(self) -> int:
        """Elements of an embedding: one more than a vector has, the bias."""
        return self.dim + 1

    @property
    def embedding_parts(self) -> dict[str, Any]:
        """Table → part → where it is in a row; see `sparring.EMBEDDING_PARTS`."""
        parts = {"bias": [0, 1], "embedding": [1, self.dim + 1]}
        return dict.fromkeys(self.table_names, parts)


class DlrmModel(Section):
    """Deep learning recommendation model: Naumov et al., arXiv 1906.00091 (2019)."""

    kind: Literal["dlrm"]
    embedding_dim: _Dim = Field(16, description="Elements of an embedding, the same everywhere.")
    bottom_mlp: _Layers = Field(
        (64, 32),
        description="Widths of the hidden layers over the integers; a last layer of "
        "`embedding_dim` is added.",
    )
    top_mlp: _Layers = Field(
        (64, 32),
        description="Widths of the hidden layers over the interactions; a last layer of 1 is "
        "added.",
    )

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables of this model: one for each categorical column of a click log."""
        from sparring_train.data.criteo_format import COLUMNS, NUM_FEATURES

        return tuple(COLUMNS[-NUM_FEATURES:])

    @property
    def row_dim(self) -> int:
        """Elements of an embedding."""
        return self.embedding_dim


ModelConfig = Annotated[MatrixFactorizationModel | DlrmModel, Field(discriminator="kind")]
