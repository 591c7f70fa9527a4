"""Kinds of the `model` section that rank items: two towers and a sequence model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from sparring.contracts import TableConfig
from sparring_train.columns import Schema
from sparring_train.config.section import PositiveFloat, PositiveInt
from sparring_train.config.sections.kinds import Loss, ModelSection, Ranking
from sparring_train.config.sections.model import Dim, Layers, Pooling, pooling_field

__all__ = ["RankingModel", "SequenceModel", "TwoTowersModel"]

_Features = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1, max_length=64, strict=False),
]


class RankingModel(ModelSection):
    """Keys of models that are trained with a softmax over the items of a step. Examples without a
    user or an item are left out."""

    embedding_dim: Dim = Field(
        64, description="Number of elements of an embedding, and of user and item vectors."
    )
    temperature: PositiveFloat = Field(
        1.0, description="Divisor of the products of vectors in the loss."
    )
    normalize: bool = Field(False, description="Scale user and item vectors to length 1.")
    log_q: bool = Field(
        True,
        description="Correct the loss for the frequency of items. Without it, frequent items are "
        "ranked too low, because they are often in the same batch.",
    )
    positive: float | None = Field(
        None,
        description="Minimum label of a positive example. Examples with a smaller label are left out "
        "of the loss and the test. Null: 1 if labels are 0 and 1; otherwise all examples are used. "
        "`table` data with a label require it.",
    )

    @property
    def loss(self) -> Loss:
        return "ranking"

    @abstractmethod
    def ranking(self, schema: Schema) -> Ranking:
        """See `ModelSection.ranking`."""

    @abstractmethod
    def features(self) -> Sequence[tuple[str, str, bool]]:
        """Returns for each feature: its key, its name, and whether it has at most one id per example."""

    def tables(self, schema: Schema) -> tuple[TableConfig, ...]:
        """Returns one table per feature that is used, or per group of features that share one."""
        named = {name for _, name, _ in self._looked_up()}
        tables = (each.table_name for each in schema.features if each.name in named)
        return tuple(TableConfig(name, self.embedding_dim) for name in dict.fromkeys(tables))

    def problem(self, schema: Schema) -> str | None:
        """See `ModelSection.problem`."""
        return next(self._problems(schema), None)

    def _looked_up(self) -> Sequence[tuple[str, str, bool]]:
        return self.features()

    def _problems(self, schema: Schema) -> Iterator[str]:
        known = ", ".join(each.name for each in schema.features)
        for key, name, is_one in self.features():
            feature = schema.feature(name)
            if feature is None:
                yield f"model.{key} is {name!r}; name one of the features of the data: {known}"
            elif is_one and feature.is_list:
                yield f"model.{key} is {name!r}, which is a list; name a feature with one id per example"
        if self.positive is not None and schema.label is None:
            yield f"model.positive is {self.positive:g}, but the data has no label; remove it"

    def _threshold(self, schema: Schema) -> float | None:
        return 1.0 if self.positive is None and schema.label == "binary" else self.positive


class TwoTowersModel(RankingModel):
    """Computes vectors of users and items, trained with a softmax over the items of a step: Yi et al.,
    "Sampling-bias-corrected neural modeling for large corpus item recommendations", RecSys 2019."""

    kind: Literal["two_towers"]
    user: _Features = Field(
        ("user",), description="Features of the user's tower. The first one is the user."
    )
    item: _Features = Field(
        ("item",), description="Features of the item's tower. The first one is the item."
    )
    layers: Layers = Field(
        (),
        description="Widths of the hidden layers of each tower; an output layer of width "
        "`embedding_dim` is added. Empty: a vector is the sum of the features' embeddings.",
    )
    pooling: Pooling = pooling_field()

    def features(self) -> Sequence[tuple[str, str, bool]]:
        """See `RankingModel.features`."""
        return [
            (key, name, place == 0)
            for key, names in (("user", self.user), ("item", self.item))
            for place, name in enumerate(names)
        ]

    def ranking(self, schema: Schema) -> Ranking:
        """Returns a ranking in which the test examples of a user are one query."""
        are_rows = not self.normalize and not self.layers and len(self.item) == 1
        return Ranking(
            item=self.item,
            user=self.user[0],
            query=self.user[0],
            temperature=self.temperature,
            normalize=self.normalize,
            rows_are_vectors=are_rows,
            user_is_row=are_rows and len(self.user) == 1,
            log_q=self.log_q,
            positive=self._threshold(schema),
        )

    def _problems(self, schema: Schema) -> Iterator[str]:
        yield from super()._problems(schema)
        for name in self.user:
            if name in self.item:
                yield f"model.user and model.item both contain {name!r}; remove it from one of them"


class SequenceModel(RankingModel):
    """Predicts the next item of a history by self-attention: Kang and McAuley, "Self-attentive
    sequential recommendation", ICDM 2018. Trained with a softmax over the items of a step."""

    kind: Literal["sequence"]
    history: str = Field(
        "history", min_length=1, description="The list feature of earlier items, oldest first."
    )
    item: str = Field("item", min_length=1, description="The feature that contains the next item.")
    user: str | None = Field(
        None,
        min_length=1,
        description="The feature that contains the user, who had the items of the training examples "
        "before. Null: users of the history.",
    )
    exclude_seen: bool = Field(
        False,
        description="Do not rank the items that the user had before in the test. Test items among them "
        "are then never found.",
    )
    length: Annotated[int, Field(ge=1, le=4096)] = Field(
        50, description="Maximum number of items of a history that are used, the latest ones."
    )
    blocks: Annotated[int, Field(ge=1, le=64)] = Field(2, description="Number of attention layers.")
    heads: PositiveInt = Field(
        2, description="Number of heads per attention layer; must divide `embedding_dim`."
    )
    hidden_layer: PositiveInt = Field(
        256, description="Width of the feed-forward layer in a block."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.2, description="Dropout rate in training."
    )

    def features(self) -> Sequence[tuple[str, str, bool]]:
        """See `RankingModel.features`."""
        user = [] if self.user is None else [("user", self.user, True)]
        return [*self._looked_up(), *user]

    def ranking(self, schema: Schema) -> Ranking:
        """Returns a ranking in which each test example is a query."""
        return Ranking(
            item=(self.item,),
            user=self.user,
            history=self.history,
            ranks_seen=not self.exclude_seen,
            temperature=self.temperature,
            normalize=self.normalize,
            rows_are_vectors=not self.normalize,
            log_q=self.log_q,
            positive=self._threshold(schema),
        )

    def _looked_up(self) -> Sequence[tuple[str, str, bool]]:
        return [("history", self.history, False), ("item", self.item, True)]

    def _problems(self, schema: Schema) -> Iterator[str]:
        yield from super()._problems(schema)
        history, item = schema.feature(self.history), schema.feature(self.item)
        assert history is not None
        assert item is not None
        if not history.is_list:
            yield f"model.history is {self.history!r}, which is not a list; add it to data.lists"
        if history.table_name != item.table_name:
            yield (
                f"model.history and model.item must share a table, found {history.table_name!r} and "
                f"{item.table_name!r}; set data.share_tables"
            )
        if self.embedding_dim % self.heads:
            yield (
                f"model.embedding_dim must be a multiple of model.heads, found {self.embedding_dim} and "
                f"{self.heads}"
            )
