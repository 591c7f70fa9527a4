"""`model.kind: package.module:Class`: a model class of the user."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sparring.contracts import TableConfig
from sparring_train.columns import Schema
from sparring_train.config.names import ClassName
from sparring_train.config.sections.kinds import Loss, ModelSection, Ranking

__all__ = ["OwnModel"]


class OwnModel(ModelSection):
    """Your own model: a module of the framework that uses tables of all features."""

    kind: ClassName = Field(
        description="Import path of the class: `package.module:Class`. It is called with the embeddings "
        "of all features, the number of numeric columns, and `options`.",
    )
    embedding_dim: Annotated[int, Field(ge=1, le=65_536)] = Field(
        16, description="Number of elements of an embedding, in all tables except those in `dims`."
    )
    dims: dict[str, Annotated[int, Field(ge=1, le=65_536)]] = Field(
        default_factory=dict, description="Number of elements of an embedding, per table."
    )
    trained_for: Literal["log_loss", "squared_error", "ranking"] = Field(
        "log_loss",
        description="Selects the metrics, and the loss if the class does not define one: `log_loss` for "
        "labels of 0 and 1, `squared_error` for numbers, `ranking` for examples without labels.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Further keyword arguments of the class."
    )
    user: str = Field(
        "user", min_length=1, description="The feature that contains the user, for `ranking`."
    )
    item: str = Field(
        "item", min_length=1, description="The feature that contains the item, for `ranking`."
    )

    positive: float | None = Field(
        None,
        description="Minimum label of a positive example, for `ranking`. Examples with a smaller label "
        "are left out of the loss and the test. Null uses 1 if labels are 0 and 1, and otherwise all "
        "examples.",
    )

    @property
    def loss(self) -> Loss:
        return self.trained_for

    def ranking(self, schema: Schema) -> Ranking | None:
        """Returns a softmax over the items of a step; the test examples of a user are one query."""
        if self.loss != "ranking":
            return None
        positive = 1.0 if self.positive is None and schema.label == "binary" else self.positive
        return Ranking(item=(self.item,), user=self.user, query=self.user, positive=positive)

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """Returns one table per feature, or per group of features that share one."""
        return tuple(
            TableConfig(name, self.dims.get(name, self.embedding_dim))
            for name in schema.table_names
        )

    def problem(self, schema: Schema) -> str | None:
        """See `ModelSection.problem`."""
        unknown = sorted(self.dims.keys() - set(schema.table_names))
        if unknown:
            tables = ", ".join(schema.table_names)
            return (
                f"model.dims contains {', '.join(unknown)}, but the tables are {tables}; name these"
            )
        if self.loss != "ranking":
            return None
        if self.positive is not None and schema.label is None:
            return f"model.positive is {self.positive:g}, but the data has no label; remove it"
        for key, name in (("user", self.user), ("item", self.item)):
            feature = schema.feature(name)
            if feature is None or feature.is_list:
                return f"model.{key} is {name!r}; name a feature with one id per example"
        return None
