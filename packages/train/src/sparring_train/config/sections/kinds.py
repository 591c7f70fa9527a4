"""Bases of the `data` and the `model` section, of which plugins bring kinds."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from sparring.contracts import TableConfig
from sparring_train.columns import Label, Schema
from sparring_train.config.section import PositiveInt, Section

__all__ = ["METRICS", "DataSection", "Loss", "ModelSection", "Ranking"]

Loss = Literal["log_loss", "squared_error", "ranking"]
"""Aim of a model: clicks, numbers, or that each example outranks others."""

METRICS: dict[Loss, tuple[str, ...]] = {
    "log_loss": ("auc", "log_loss"),
    "squared_error": ("rmse",),
    "ranking": ("recall@10", "ndcg@10", "mrr@10", "hit_rate@10"),
}
"""Loss → the metrics of its models; models are compared by the first."""

_LABELS: dict[str, Label | None] = {
    "log_loss": "binary",
    "squared_error": "number",
    "ranking": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How a model of the loss `ranking` is trained and tested: a softmax over the items of a step, and
    the ranking of all items."""

    item: tuple[str, ...]
    """Features of an item; the first has its id."""
    user: str | None = None
    """The feature that has the user, for whom items of the training examples are not ranked."""
    query: str | None = None
    """Test examples of one id of this feature are one query. None: each test example is one."""
    history: str | None = None
    """A feature whose items are not ranked for the example."""
    temperature: float = 1.0
    """Products of vectors are divided by it in the loss."""
    normalize: bool = False
    """Vectors have length 1."""
    log_q: bool = True
    """The loss is corrected for how often an item comes."""
    positive: float | None = None
    """Examples whose label is below are left out of the loss and of the test; None: no example is."""


class DataSection(Section):
    """Source of examples. A kind adds its own keys, and says what columns it has."""

    kind: str
    batch_size: PositiveInt

    @property
    @abstractmethod
    def columns(self) -> Schema:
        """Columns of its examples, by what the section says alone; no file is read."""

    @property
    def has_validation(self) -> bool:
        """Whether some examples are kept for validation: `Dataset.validation_batches` returns them."""
        return False

    @property
    def labels(self) -> tuple[Label | None, ...]:
        """Labels that it can give; `OpenRequest.label` chooses among several."""
        return (self.columns.label,)


class ModelSection(Section):
    """Model to train. A kind adds its own keys, and says what tables it wants."""

    kind: str

    @property
    def loss(self) -> Loss:
        """Aim of its training."""
        return "log_loss"

    @property
    def label(self) -> Label | None:
        """Values of labels that the loss takes."""
        return _LABELS[self.loss]

    @abstractmethod
    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """Tables for data of these columns: name, dim and initializer count."""

    def problem(self, schema: Schema) -> str | None:
        """Why this model cannot be trained on data of these columns, and what to do; or None."""
        return None

    def ranking(self, schema: Schema) -> Ranking | None:
        """How it ranks items of data of these columns; None where its loss is not `ranking`."""
        return None

    @property
    def read_embedding_parts(self) -> dict[str, Any]:
        """Part → where it is in the rows of every table; see `sparring.EMBEDDING_PARTS`."""
        return {}
