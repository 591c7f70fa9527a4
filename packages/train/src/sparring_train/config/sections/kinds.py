"""Base classes of the `data` and `model` sections. Plugins register further kinds of both."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sparring.contracts import TableConfig
from sparring_train.columns import Label, Schema
from sparring_train.config.section import PositiveInt, Section

__all__ = ["METRICS", "DataSection", "Loss", "ModelSection", "Ranking"]

Loss = Literal["log_loss", "squared_error", "ranking"]
"""Objective of a model: predict clicks, predict numbers, or rank items."""

METRICS: dict[Loss, tuple[str, ...]] = {
    "log_loss": ("auc", "log_loss"),
    "squared_error": ("rmse",),
    "ranking": ("recall@10", "ndcg@10", "mrr@10", "hit_rate@10"),
}
"""Metrics of models with each loss. The first metric is used to compare models."""

_LABELS: dict[str, Label | None] = {
    "log_loss": "binary",
    "squared_error": "number",
    "ranking": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How a model with the loss `ranking` is trained (softmax over the items of a step) and tested
    (ranking of all items)."""

    item: tuple[str, ...]
    """Features of an item. The first one contains the item's id."""
    user: str | None = None
    """Feature that contains the user, who had the items of the training examples before."""
    query: str | None = None
    """Feature whose ids group the test examples: one query per id. With None, each example is a query."""
    history: str | None = None
    """Feature that contains earlier items of the user."""
    ranks_seen: bool = False
    """Whether items that the user had before are ranked in the test."""
    temperature: float = 1.0
    """Number by which the loss divides the products of vectors."""
    normalize: bool = False
    """Whether vectors are scaled to length 1."""
    log_q: bool = True
    """Whether the loss is corrected for the frequency of items."""
    rows_are_vectors: bool = True
    """Whether the vector of an item is its row. If not, published versions also contain the vectors."""
    user_is_row: bool = False
    """Whether the vector of a user is the row of the user, too."""
    positive: float | None = None
    """Examples with a smaller label are left out of the loss and the test. None uses all examples."""


class DataSection(Section):
    """Source of examples. A kind adds its own keys and defines its columns."""

    kind: str
    batch_size: PositiveInt

    changeable: ClassVar[frozenset[str]] = frozenset()
    """Keys that may change when a run is resumed."""

    @property
    @abstractmethod
    def columns(self) -> Schema:
        """Columns of the examples. They depend only on the section, and no file is read."""

    @property
    def has_validation(self) -> bool:
        """Whether `Dataset.validation_batches` returns examples."""
        return False

    @property
    def has_test(self) -> bool:
        """Whether `Dataset.test_batches` returns examples. If not, the run has no metrics."""
        return True

    @property
    def has_epochs(self) -> bool:
        """Whether the examples can be read again in further epochs. If not, they are a stream; see
        `sparring_train.data.dataset.StreamedDataset`."""
        return True

    @property
    def labels(self) -> tuple[Label | None, ...]:
        """Kinds of labels that are available; `OpenRequest.label` selects one."""
        return (self.columns.label,)


class ModelSection(Section):
    """Model to train. A kind adds its own keys and defines its tables."""

    kind: str

    @property
    def loss(self) -> Loss:
        """Objective of the training."""
        return "log_loss"

    @property
    def label(self) -> Label | None:
        """Kind of labels that the loss requires."""
        return _LABELS[self.loss]

    @abstractmethod
    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """Returns the tables for data with these columns. Only name, dim and initializer are used.

        Args:
            schema: columns of the data.
        """

    def problem(self, schema: Schema) -> str | None:
        """Returns why data with these columns are unsuitable, and the fix; None if they are suitable.

        Args:
            schema: columns of the data.
        """
        return None

    def ranking(self, schema: Schema) -> Ranking | None:
        """Returns how items are ranked; None if the loss is not `ranking`.

        Args:
            schema: columns of the data.
        """
        return None

    @property
    def embedding_parts(self) -> dict[str, Any]:
        """Position of each part in the rows of every table; see `sparring.EMBEDDING_PARTS`."""
        return {}
