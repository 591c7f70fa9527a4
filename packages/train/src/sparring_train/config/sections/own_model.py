"""`model.kind: package.module:Class`: a model of the user's own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sparring.contracts import TableConfig
from sparring_train.columns import Schema
from sparring_train.config.names import ClassName
from sparring_train.config.sections.kinds import Loss, ModelSection, Ranking

__all__ = ["OwnModel"]


class OwnModel(ModelSection):
    """A class of one's own: a module of the framework over tables of all features."""

    kind: ClassName = Field(
        description="`package.module:Class`: where Python finds the class. It is called with the "
        "embeddings of all features, the number of number columns, and `options`.",
    )
    embedding_dim: Annotated[int, Field(ge=1, le=65_536)] = Field(
        16, description="Elements of an embedding, the same in every table."
    )
    dims: dict[str, Annotated[int, Field(ge=1, le=65_536)]] = Field(
        default_factory=dict, description="Table → elements of its embeddings, where they differ."
    )
    trained_for: Literal["log_loss", "squared_error", "ranking"] = Field(
        "log_loss",
        description="The metrics, and the loss where the class has none of its own: `log_loss` for "
        "labels of 0 and 1, `squared_error` for numbers, `ranking` for examples without labels.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of the class."
    )
    user: str = Field(
        "user", min_length=1, description="The feature that has the user, for `ranking`."
    )
    item: str = Field(
        "item", min_length=1, description="The feature that has the item, for `ranking`."
    )

    positive: float | None = Field(
        None,
        description="Examples whose label is below are left out of the loss and of the test, for "
        "`ranking`. Null: as of `two_towers`.",
    )

    @property
    def loss(self) -> Loss:
        return self.trained_for

    def ranking(self, schema: Schema) -> Ranking | None:
        """A softmax over the items of a step, as of `two_towers`; test examples of a user are a query."""
        if self.loss != "ranking":
            return None
        positive = 1.0 if self.positive is None and schema.label == "binary" else self.positive
        return Ranking(item=(self.item,), user=self.user, query=self.user, positive=positive)

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """One for each feature, or group of features that share one."""
        return tuple(
            TableConfig(name, self.dims.get(name, self.embedding_dim))
            for name in schema.table_names
        )

    def problem(self, schema: Schema) -> str | None:
        """See `ModelSection`."""
        unknown = sorted(self.dims.keys() - set(schema.table_names))
        if unknown:
            tables = ", ".join(schema.table_names)
            return f"model.dims names {', '.join(unknown)}; the tables are {tables}"
        if self.loss != "ranking":
            return None
        if self.positive is not None and schema.label is None:
            return f"model.positive is {self.positive:g}, and the data has no label"
        for key, name in (("user", self.user), ("item", self.item)):
            feature = schema.feature(name)
            if feature is None or feature.is_list:
                return f"model.{key} is {name!r}, which is no feature of one id an example"
        return None
