"""A snapshot's description of a table: enough to read its rows without a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparring.contracts.initializers import Initializer
from sparring.contracts.table import TableConfig
from sparring.errors import InvalidArgumentError

__all__ = ["JSON", "TableDescription"]

JSON = Any
"""None, bool, int, float, str, and lists and string-keyed mappings of these."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table, as far as its rows are concerned.

    Args:
        name: of the table.
        dim: elements of an embedding.
        dtype: of embeddings.
        state_width: elements of optimizer state behind each embedding.
        state_method: the update method of that state; empty where unknown.
        has_scores: whether rows come with scores.
        extra: what else is worth keeping. `of` puts the seed, the initializer and the placement
            there, because rows that were never written are computed from them.
    """

    name: str
    dim: int
    dtype: str = "float32"
    state_width: int = 0
    state_method: str = ""
    has_scores: bool = False
    extra: Mapping[str, JSON] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        table: TableConfig,
        *,
        has_scores: bool = False,
        extra: Mapping[str, JSON] | None = None,
    ) -> TableDescription:
        """The description of `table`.

        Args:
            table: as declared, with its state.
            has_scores: whether the storage keeps scores that are to be saved.
            extra: added to the seed, the initializer and the placement.
        """
        assert isinstance(table.initializer, Initializer)  # TableConfig sees to it
        known = {
            "seed": table.seed,
            "initializer": table.initializer.as_dict(),
            "placement": table.placement,
        }
        return cls(
            table.name,
            table.dim,
            table.dtype,
            table.state_width,
            table.state_method,
            has_scores,
            known | dict(extra or {}),
        )

    @property
    def config(self) -> TableConfig:
        """A table of the same rows, with the default initializer; it gives their layout.

        Raises:
            InvalidArgumentError: there can be no such table.
        """
        return TableConfig(
            self.name,
            self.dim,
            self.dtype,
            # Of every legal dim and dtype it stays within the range.
            initializer="zeros",
            state_width=self.state_width,
            state_method=self.state_method,
        )

    @property
    def width(self) -> int:
        """Elements of the table's dtype in a whole row."""
        return self.config.width

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of arrays of rows."""
        return self.config.numpy_dtype

    def check(self, table: TableConfig) -> None:
        """Refuses a table whose rows these cannot be.

        Raises:
            InvalidArgumentError: naming what differs, in the snapshot and in the table.
        """
        asked, found = table, self.config
        differing = [
            f"{name} {getattr(found, name)!r} in the snapshot, {getattr(asked, name)!r} declared"
            for name in ("name", "dim", "dtype")
            if getattr(found, name) != getattr(asked, name)
        ]
        if found.has_other_state(asked):
            differing.append(
                f"state of {found.state_width} elements of {found.state_method or 'an unknown method'!r} "
                f"in the snapshot, {asked.state_width} of {asked.state_method or 'an unknown method'!r} "
                "declared"
            )
        if differing:
            raise InvalidArgumentError(
                f"snapshot of table {self.name!r} does not fit the table that is declared: "
                f"{'; '.join(differing)}. Declare it as it was saved, or load another snapshot",
                table=self.name,
                differing=tuple(differing),
            )
