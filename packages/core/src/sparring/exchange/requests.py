"""What an exchange is asked for, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.exchange.options import WireDtype
from sparring.exchange.wire import Codec
from sparring.storage.contract import Columns, Keys, Rows, Storage
from sparring.table import TableConfig

__all__ = ["OwnedGradients", "PullRequest", "Pulled", "PushRequest"]


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Rows of one table that are wanted.

    Args:
        storage: this rank's shard, or None where it holds no rows yet.
        table: name and dtype.
        keys: ``(u,)`` unique.
        columns: the part of each row that is wanted.
    """

    storage: Storage | None
    table: TableConfig
    keys: Keys
    columns: Columns

    def codec(self, wire_dtype: WireDtype) -> Codec:
        """State travels as it is: only embeddings are numbers of the table's dtype."""
        is_embedding = self.columns.end <= self.table.dim
        return Codec(
            self.table.numpy_dtype,
            self.columns.end - self.columns.begin,
            wire_dtype if is_embedding else WireDtype.EXACT,
        )


@dataclass(slots=True)
class Pulled:
    """What the owners had, in the order of the keys asked for."""

    rows: Rows
    """``(u, width of columns)`` of the table's dtype; zeros where `found` is False."""
    found: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PushRequest:
    """Gradients of one table that go to their owners.

    Args:
        table: name and dtype.
        keys: ``(u,)`` unique on this rank.
        gradients: ``(u, dim)`` of the table's computing dtype.
        make_accumulator: makes an empty accumulator for one exchange.
        storage: this rank's shard, whose rows are to be found while gradients travel; None: they
            are not wanted.
    """

    table: TableConfig
    keys: Keys
    gradients: Rows
    make_accumulator: Callable[[], Any]
    storage: Storage | None = None

    def codec(self, wire_dtype: WireDtype) -> Codec:
        return Codec(self.table.computing_dtype, self.table.dim, wire_dtype)


@dataclass(slots=True)
class OwnedGradients:
    """The gradients that all ranks pushed to this one, or to all replicas, added up by key."""

    keys: Keys
    gradients: Rows
    found: Pulled | None = None
    """The whole rows of these keys, where they were found on the way."""
    error: BaseException | None = None
    """Why this rank cannot apply the step: it found out when it was too late to say so."""
